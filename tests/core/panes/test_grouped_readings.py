"""A bundle's readings by group and window, and their bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.reading_columns import event_key, time_of_key
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import GroupedReadings, read_group_readings, start_of_readings
from pipeline.core.schema.layouts import Identity
from pipeline.core.schema.rate import Rate, group_of, groups_for, groups_of_batch
from pipeline.core.windows import HOURLY, parse_window

T = 1_771_322_400_000_000
HOUR = HOURLY.length_us
EVENTS = st.builds(
    Event,
    st.sampled_from(["a", "b", "sensor-3"]),
    st.integers(T, T + 3 * HOUR),
    st.dictionaries(st.sampled_from(["t", "u", "long.name"]), st.floats(allow_nan=False), min_size=1),
    st.dictionaries(st.just("place"), st.sampled_from(["", "north"])),
)


def taken(events, groups=2, identity=Identity()):  # noqa: B008 (frozen)
    gathered = GroupedReadings(HOURLY, identity, groups)
    gathered.add(events)
    return list(gathered.take_groups())


@given(st.lists(EVENTS), st.sampled_from([Identity(), Identity(1000, ("place",))]))
def test_round_trip(events, identity):
    """Every reading comes back once, in the part of its group and window."""
    found = []
    for part in taken(events, identity=identity):
        assert start_of_readings(part.data) == HOURLY.start_of(part.time_us)
        times_us: list[int] = []
        for sensor_id, metrics, times, values, _ in read_group_readings(part.data):
            assert group_of(sensor_id.encode(), 2) == part.group
            for index, time in enumerate(times):
                times_us.append(time_of_key(time))
                of_event = values[index * len(metrics) : (index + 1) * len(metrics)]
                found.append((sensor_id, time, sorted(zip(metrics, of_event, strict=True))))
                assert HOURLY.start_of(time if time < 1 << 63 else time >> 64) == start_of_readings(part.data)
        assert part.time_us == min(times_us)  # a timer holds the watermark there
    expected = [
        (event.sensor_id, event_key(*identity.of_event(event)), sorted(event.readings.items())) for event in events
    ]
    assert sorted(found) == sorted(expected)


def test_one_part_for_a_group_and_window():
    """A bundle's readings of one group and window are one element."""
    events = [Event(f"s{n}", T + n % 2 * HOUR, {"t": 1.0}, {}) for n in range(100)]
    parts = taken(events, groups=4)
    assert len(parts) == len({(part.group, start_of_readings(part.data)) for part in parts}) == 8


def test_the_bytes_of_this_release():
    """A running job's state contains these bytes: they change only with the version."""
    (part,) = taken([Event("a", T + 1, {"t": 1.5, "u": -2.0}, {}), Event("a", T + 2, {"t": 3.0, "u": 0.0}, {})], 1)
    assert part.data.hex() == (
        "01" "00486f22024b0600" "01000000" "04000000" "01740175"
        "0100" "00000000" "02000000" "08" "61" "01486f22024b0600" "02486f22024b0600"
        "000000000000f83f" "00000000000000c0" "0000000000000840" "0000000000000000"
    )  # fmt: skip


@pytest.mark.parametrize("sensor_id", ["a", "sensor-1", "~"])
def test_a_sensors_group_never_changes(sensor_id):
    """A sensor's group follows from its id alone, in every release."""
    assert group_of(sensor_id.encode(), 256) == {"a": 67, "sensor-1": 211, "~": 182}[sensor_id]


def test_another_release():
    """Readings of another release are refused, and the message says to drain the job."""
    (part,) = taken([Event("a", T, {"t": 1.0}, {})])
    with pytest.raises(ValueError, match="another release wrote these readings; drain the job"):
        start_of_readings(b"\x02" + part.data[1:])


@pytest.mark.parametrize(
    ("seconds", "sensors", "groups"),
    [
        (60, None, 256), (10, None, 256), (9, None, 1024), (1, None, 1024), (0.5, None, 4096),
        (60, 10, 256), (60, 256_000, 256), (60, 256_001, 512), (60, 10**8, 131_072),
        (1, 10**6, 8192), (0.1, 10**6, 131_072),
    ],
)  # fmt: skip
def test_the_number_of_groups_follows_from_the_rate(seconds, sensors, groups):
    """A declared rate and number of sensors decide the number of groups; without a number, it serves small fleets."""
    assert groups_for(Rate(round(seconds * 1_000_000), sensors=sensors)) == groups
    assert groups_for(None) == 256


def test_elements_are_bounded():
    """However many readings a bundle has of one sensor, no element is much larger than two megabytes."""
    metrics = {f"m{n}": 1.0 for n in range(100)}
    events = [Event("a", T + n, metrics, {}) for n in range(10_000)]
    parts = taken(events)
    assert max(len(part.data) for part in parts) < 2.2e6 < sum(len(part.data) for part in parts) / 3
    times = [time for part in parts for each in read_group_readings(part.data) for time in each.times]
    assert sorted(times) == [event.event_time_us for event in events]


def test_long_windows_have_small_groups():
    """A batch job holds the readings of a group in one window: with days, those of fewer sensors than with hours."""
    groups = [groups_of_batch(Rate(1_000_000), parse_window(text)) for text in ("15m", "1h", "1d")]
    assert groups == [1024, 1024, 24 * 1024]


def test_a_bundle_that_failed():
    """A failed bundle's content does not reach the next bundle, and nothing is taken twice."""
    gathered = GroupedReadings(HOURLY)
    gathered.add([Event("a", T, {"t": 1.0}, {})])
    gathered.start()
    gathered.add([Event("b", T, {"t": 1.0}, {})])
    assert [each.sensor_id for part in gathered.take_groups() for each in read_group_readings(part.data)] == ["b"]
    assert not list(gathered.take_groups())
