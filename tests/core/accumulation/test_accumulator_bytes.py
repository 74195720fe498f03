import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.statistics.window_stats import WindowStats

names = st.text(min_size=1, max_size=32)
values = st.floats(allow_nan=False, allow_infinity=False)
events = st.dictionaries(
    st.integers(0, 9_999_999_999_999_999) | st.integers(1 << 62, 1 << 118),
    st.dictionaries(names, values, min_size=1, max_size=4),
    max_size=12,
)


def contents(stats):
    return stats.events, {
        metric: [getattr(of_metric, slot) for slot in of_metric.__slots__]
        for metric, of_metric in stats.metrics.items()
    }


def kept(readings):
    """Returns the kept readings by event time. In this module, each event arrives with all its metrics at once."""
    return dict(readings._kept.events()) | readings._fresh


@given(events, events, st.booleans())
def test_readings_round_trip(added, restored, restores):
    """An accumulator's bytes contain all its content, to the last bit."""
    readings = WindowReadings()
    for time_us, of_event in added.items():
        readings.add(time_us, of_event)
    if restores:
        statistics = WindowStats()
        for of_event in restored.values():
            statistics.add(of_event)
        readings.restore(statistics)
    found = WindowReadings.from_bytes(readings.to_bytes())
    assert kept(found) == kept(readings) == added
    assert (contents(found.pane().stats), found.exact) == (contents(readings.pane().stats), not restores)


@pytest.mark.parametrize("count", [1, 10])
def test_truncated_bytes(count):
    """Truncated bytes raise an error instead of being read as fewer readings."""
    readings = WindowReadings()
    for i in range(count):
        readings.add(i, {"t": 1.0})
    encoded = readings.to_bytes()
    for size in range(len(encoded)):
        with pytest.raises(ValueError, match="is cut off"):
            WindowReadings.from_bytes(encoded[:size])


def a_few():
    readings = WindowReadings()
    for second in range(4):
        readings.add(1_771_329_600_000_000 + second * 1_000_000, {"t": second / 2})
    return readings


def many(discriminator=""):
    """An accumulator that is sealed: decimals, bits and constants, at times with and without a constant rate."""
    readings = WindowReadings()
    for i in range(300):
        identity = f"{discriminator}{i}" if discriminator else ""
        readings.add(1_771_329_600_000_000 + i * 1_000_000, {"t": i % 7 / 10, "u": 1 / (i + 1), "v": -0.0}, identity)
        readings.add(1_771_331_400_000_000 + i * i * 1000, {"t": i / 4 - 9}, identity)
    return readings


def restored():
    readings = many()
    readings.restore(a_few().pane().stats)
    return readings


def too_wide():
    readings = WindowReadings()
    readings._give_up()
    return readings


GOLDEN = {
    "nothing": WindowReadings,
    "a_few": a_few,
    "a_few_wide": lambda: accumulated_wide(3),
    "columns_wide": lambda: accumulated_wide(40),
    "sealed": many,
    "sealed_wide": lambda: many("e-"),
    "restored": restored,
    "too_wide": too_wide,
}
"""What the golden files contain. The state of running jobs consists of such bytes, so a release that can't read them
needs another version byte; write them anew with ``python -m tests.core.accumulation.test_accumulator_bytes`` for that
only."""


def accumulated_wide(count):
    readings = WindowReadings()
    for i in range(count):
        readings.add(1_771_329_600_000_000, {"t": i / 2}, f"e-{i}")
    return readings


def everything(accumulator):
    pane = accumulator.pane()
    parts = [contents(pane.stats), pane.too_wide]
    if isinstance(accumulator, WindowReadings):
        parts += [repr(sorted(accumulator._by_time().items())), accumulator.magnitudes()]
    return parts


def golden(name):
    return Path(__file__).parent / "golden" / f"{name}.bin"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_format(name):
    """Bytes that this format's first release wrote are read, to the last bit."""
    encoded, expected = golden(name).read_bytes(), GOLDEN[name]()
    found = type(expected).from_bytes(encoded)
    assert found.to_bytes() == encoded
    assert everything(found) == everything(expected)
    # Of the same size now: a change is a change of the format. zlib may pack differently from release to release.
    assert len(expected.to_bytes()) == pytest.approx(len(encoded), rel=0.05)


@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_damaged_bytes(name, data):
    """Damaged bytes raise an error of ours or are other readings; nothing larger than the bytes is made on the way."""
    kind, encoded = type(GOLDEN[name]()), bytearray(golden(name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    with contextlib.suppress(ValueError):
        found = kind.from_bytes(bytes(encoded))
        if kind is WindowReadings:
            list(found._kept.events() if found._kept else ())


@pytest.mark.parametrize("first", [0x00, 0x01, 0x09, 0x29, 0x49, 0x69, 0x80, 0x81, 0x89, 0x99, 0x1A, 0x1B, 0x1C])
def test_another_format(first):
    """Another release's bytes raise an error instead of being misread."""
    with pytest.raises(ValueError, match=r"^another release wrote this accumulator; drain the job"):
        WindowReadings.from_bytes(bytes([first]) + WindowReadings().to_bytes()[1:])


def test_bytes_after_the_end():
    """Bytes after the accumulator's end raise an error."""
    with pytest.raises(ValueError, match=r"^the accumulator has bytes after its end$"):
        WindowReadings.from_bytes(WindowReadings().to_bytes() + b"?")


if __name__ == "__main__":
    for each, make in GOLDEN.items():
        golden(each).write_bytes(make().to_bytes())
