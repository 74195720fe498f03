import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.reading_columns import MOST_EVENTS, Sealed, seal

doubles = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.builds(lambda integer, places: integer / 10**places, st.integers(-(10**7), 10**7), st.integers(0, 6))
columns = st.lists(
    st.lists(doubles, min_size=1, max_size=40)
    | st.lists(decimals, min_size=1, max_size=40)
    | st.sampled_from([[-0.0, 0.0], [5e-324, -1.7976931348623157e308, 0.1], [1e22, 2.0**63], [0.1] * 20 + [0.123456]]),
    min_size=1,
    max_size=4,
)
starts = st.integers(0, 10**16) | st.integers(-(1 << 63), (1 << 63) - 50) | st.integers(1 << 63, 1 << 118)


def bits(values):
    return struct.pack(f"<{len(values)}d", *values)


def opened(blocks):
    return [event for block in blocks for event in block.by_event()]


@given(columns, starts, st.data())
def test_readings_come_back(values, start, data):
    """Every time, and every value to its last bit, comes back, in order of time."""
    events = min(map(len, values))
    steps = data.draw(st.sampled_from([[1_000_000], [1000, 2000, 7_000_000], [1, 1 << 20, 1 << 80]]))
    step = data.draw(st.lists(st.sampled_from(steps), min_size=events, max_size=events))
    ascending = [start + sum(step[:index]) for index in range(events)]
    times = data.draw(st.permutations(ascending))
    metrics = tuple(f"m{index}" for index in range(len(values)))
    flat = [of_metric[index] for index in range(events) for of_metric in values]
    (block,) = seal(metrics, times, flat)
    assert (block.first, block.last, block.events) == (ascending[0], ascending[-1], events)
    assert block.times() == set(times)
    expected = dict(zip(times, zip(*values, strict=False), strict=True))
    found = opened([block])
    assert [time for time, _ in found] == ascending
    for time, readings in found:
        assert (tuple(readings), bits(readings.values())) == (metrics, bits(expected[time]))
    assert [bits(of_metric) for _, of_metric in block.by_metric()] == [
        bits([expected[time][index] for time in ascending]) for index in range(len(metrics))
    ]


def test_many_are_several_blocks():
    """More events than a block may have are divided evenly."""
    times = list(range(0, 3 * (2 * MOST_EVENTS + 2), 3))
    blocks = seal(("t",), times, [float(time) for time in times])
    assert [block.events for block in blocks] == [2732, 2732, 2730]
    assert max(block.events for block in blocks) <= MOST_EVENTS
    assert opened(blocks) == [(time, {"t": float(time)}) for time in times]


@pytest.mark.parametrize(
    ("values", "most"),
    [
        ([21.5] * 256, 60),  # nothing changes
        ([20 + (i % 7) / 100 for i in range(256)], 1.1 * 256),
        ([(i * 7919 % 65536) * 0.0078125 for i in range(256)], 2.6 * 256),
        ([struct.unpack("<f", struct.pack("<f", 20 + random.Random(i).random()))[0] for i in range(256)], 4.2 * 256),
        ([random.Random(i).random() for i in range(256)], 8 * 256 + 60),
    ],
    ids=["constant", "two decimals", "steps of a converter", "floats of four bytes", "random"],
)
def test_the_size_of_a_block(values, most):
    """What values have in common takes little; those without a pattern take their eight bytes."""
    (block,) = seal(("t",), range(0, 256_000_000, 1_000_000), values)
    assert len(block.data) <= most


def test_a_constant_rate_takes_nothing():
    """Times at a constant rate take no bytes; those at whole milliseconds take as many as their milliseconds."""
    rng = random.Random(1)
    sizes = [
        len(seal(("t",), [i * 1_000_000 + 1000 * rng.randrange(jitter) for i in range(256)], [1.5] * 256)[0].data)
        for jitter in (1, 100)
    ]
    assert sizes[0] < 50
    assert sizes[1] < 50 + 256


@pytest.fixture(params=["deflated", "plain", "wide"])
def block(request):
    rng = random.Random(1)
    times = [(i << 64 if request.param == "wide" else i) for i in range(1, 30)]
    each = (lambda: rng.uniform(-1e300, 1e300)) if request.param == "plain" else (lambda: 1.5)
    (found,) = seal(("t", "u"), times, [each() for _ in range(58)])
    return found


def unpack(block):
    list(block.by_event())
    list(block.by_metric())
    block.times()


def test_a_block_that_is_cut_off(block):
    """A block that lacks bytes, or has more, raises an error."""
    for data in [*(block.data[:size] for size in range(len(block.data))), block.data + b"?"]:
        with pytest.raises(ValueError, match=r"a block of readings is damaged"):
            unpack(Sealed(block.metrics, block.events, block.first, block.last, data))


def test_damage(block):
    """Damaged bytes give other readings or an error of ours, and no more events than a block may have."""
    refused = 0
    for index in range(len(block.data)):
        for change in (0x01, 0x80, 0xFF):
            data = bytearray(block.data)
            data[index] ^= change
            try:
                unpack(Sealed(block.metrics, block.events, block.first, block.last, bytes(data)))
            except ValueError:
                refused += 1
    assert refused > 20


@pytest.mark.parametrize("events", [0, 28, 30, MOST_EVENTS + 1, (1 << 32) - 1])
def test_another_number_of_events(block, events):
    """A number of events that the bytes don't have is refused before anything is allocated."""
    with pytest.raises(ValueError, match=r"a block of readings is damaged"):
        unpack(Sealed(block.metrics, events, block.first, block.last, block.data))
