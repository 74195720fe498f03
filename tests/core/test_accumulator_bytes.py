import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulator import RestoredReadings, WindowReadings
from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows

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
    return {} if readings._kept is None else dict(readings._kept.events()) | readings._fresh


@given(events, events, st.booleans(), st.booleans())
def test_readings_round_trip(added, restored, deduplicate, restores):
    """An accumulator's bytes contain all its content, to the last bit."""
    readings = WindowReadings(deduplicate=deduplicate)
    for time_us, of_event in added.items():
        readings.add(time_us, of_event)
    if restores:
        statistics = WindowStats()
        for of_event in restored.values():
            statistics.add(of_event)
        readings.restore(RestoredReadings(statistics=statistics))
    found = WindowReadings.from_bytes(readings.to_bytes())
    assert kept(found) == kept(readings) == (added if deduplicate else {})
    assert (contents(found.pane().stats), found.pane().complete) == (contents(readings.pane().stats), restores)


@given(st.dictionaries(st.integers(0, 10**16), events, max_size=4), st.booleans())
def test_windows_round_trip(windows, restores):
    """The bytes of a longer window's accumulator contain all its shorter windows, to the last bit."""
    shorter = ShorterWindows()
    for start_us, of_window in windows.items():
        stats = WindowStats()
        for of_event in of_window.values():
            stats.add(of_event)
        shorter.put(start_us, stats)
    shorter.has_restored = restores
    found = ShorterWindows.from_bytes(shorter.to_bytes())
    assert found.has_restored == restores
    assert {start_us: contents(stats) for start_us, stats in found.latest.items()} == {
        start_us: contents(stats) for start_us, stats in shorter.latest.items()
    }


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


def test_a_metric_s_statistics_are_small():
    """Without readings, the statistics of a sensor, metric and hour take at most a hundred bytes."""
    readings = WindowReadings(deduplicate=False)
    readings.add(5, {"temperature_of_water": 1.0})
    assert len(readings.to_bytes()) <= 100


GOLDEN = (
    "890400000000000000020000000174040000000000000000000000000008400000000000000000000000000000f83f00"
    "0000000000e83fa8f4979b77e3e13f01000000009096cf034b06000400000000c0c62d00010000000400000000000000"
    "0000000040420f0080841e00c0c62d000000000000000000000000000000e03f000000000000f03f000000000000f83f"
)


def test_the_format():
    """The state of running jobs consists of these bytes. If they change, the format mark must change too."""
    readings = WindowReadings()
    for second in range(4):
        readings.add(1_771_329_600_000_000 + second * 1_000_000, {"t": second / 2})
    assert readings.to_bytes().hex() == GOLDEN
    assert kept(WindowReadings.from_bytes(bytes.fromhex(GOLDEN))) == kept(readings)


@pytest.mark.parametrize("kind", [WindowReadings, ShorterWindows])
@pytest.mark.parametrize("first", [0x00, 0x01, 0x09, 0x29, 0x49, 0x69])
def test_another_format(kind, first):
    """Another release's bytes raise an error instead of being misread."""
    with pytest.raises(ValueError, match=r"^another release wrote this accumulator; drain the job"):
        kind.from_bytes(bytes([first]) + kind().to_bytes()[1:])


@pytest.mark.parametrize("kind", [WindowReadings, ShorterWindows])
def test_bytes_after_the_end(kind):
    """Bytes after the accumulator's end raise an error."""
    with pytest.raises(ValueError, match=r"^the accumulator has bytes after its end$"):
        kind.from_bytes(kind().to_bytes() + b"?")
