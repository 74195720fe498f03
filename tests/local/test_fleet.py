from collections import Counter

import pytest

from pipeline.core.events.event import validate
from pipeline.core.events.message import decode
from pipeline.core.events.reasons import BadData
from pipeline.local.fleet import MALFORMED, Fleet, simulate

START = 1_771_286_400_000_000  # a midnight
HOUR = 3_600_000_000
LATEST = START + 48 * HOUR


def fleet_of(**changes):
    return Fleet(**{"sensors": 10, "start_us": START, "end_us": START + 24 * HOUR, "interval_us": HOUR // 30} | changes)


def outcome(message):
    """Returns the valid events of a message, and the reasons of its dead letters."""
    events, reasons = [], []
    try:
        for proto in decode(message):
            try:
                events.append(validate(proto, LATEST))
            except BadData as problem:
                reasons.append(problem.reason)
    except BadData as problem:
        reasons.append(problem.reason)
    return events, reasons


@pytest.mark.parametrize("batch", [1, 20])
def test_outcomes_are_predicted(batch):
    """Each message has the predicted valid events and dead-letter reasons, and every reason occurs."""
    seen = Counter()
    for message, predicted, reasons in simulate(fleet_of(batch=batch)):
        valid, refused = outcome(message)
        assert [event.sensor_id for event in valid] == [event.sensor_id for event in predicted]
        assert sorted(refused) == sorted(reasons)
        seen.update(reasons)
    assert seen.keys() == set(MALFORMED)


def test_every_reason_even_from_a_small_fleet():
    """Every reason occurs however few events there are, unless ``malformed`` is 0."""
    small = fleet_of(sensors=1, end_us=START + HOUR)
    assert {reason for one in simulate(small) for reason in one.reasons} == set(MALFORMED)
    assert not any(one.reasons for one in simulate(fleet_of(malformed=0)))


def test_one_seed_one_fleet():
    """The same fleet produces the same messages byte for byte; another seed does not."""
    first, again, other = (list(simulate(fleet_of(seed=seed, sensors=3))) for seed in (1, 1, 2))
    assert first == again
    assert [one.message for one in first] != [one.message for one in other]


def test_no_event_twice():
    """No sensor has two events at the same instant: each event is a row of its own."""
    identities = [
        (event.sensor_id, event.event_time.ToMicroseconds()) for one in simulate(fleet_of()) for event in one.events
    ]
    assert len(identities) == len(set(identities))


def test_events_stay_inside_their_time():
    """No event time is before the start or after the end."""
    times = [event.event_time.ToMicroseconds() for one in simulate(fleet_of()) for event in one.events]
    assert START <= min(times) <= max(times) < START + 24 * HOUR


def test_days_are_warmer_than_nights():
    """For every sensor, the afternoon is warmer than the night before."""
    warmth = {}
    for one in simulate(fleet_of()):
        for event in one.events:
            hour = (event.event_time.ToMicroseconds() - START) // HOUR
            if "temperature" in event.readings and hour in (3, 15):
                warmth.setdefault(event.sensor_id, {}).setdefault(hour, []).append(event.readings["temperature"])
    both = [hours for hours in warmth.values() if len(hours) == 2]
    assert len(both) >= 8
    assert all(min(hours[15]) > max(hours[3]) for hours in both)


def test_disorder_lateness_gaps_and_outages():
    """Some events arrive out of order or hours late; some readings and some periods are missing."""
    events = [event for one in simulate(fleet_of(malformed=0)) for event in one.events]
    times = [event.event_time.ToMicroseconds() for event in events]
    newest, behind = 0, []
    for time_us in times:
        newest = max(newest, time_us)
        behind.append(newest - time_us)
    assert any(0 < lag < HOUR // 6 for lag in behind)
    assert any(lag > HOUR for lag in behind)
    assert any(len(event.readings) == 3 for event in events)
    assert len(events) < 10 * 24 * 30  # what a fleet without outages would have sent


def test_no_late_events():
    """If ``late`` is 0, no event is more than minutes behind."""
    newest = 0
    for one in simulate(fleet_of(late=0, malformed=0)):
        for event in one.events:
            newest = max(newest, event.event_time.ToMicroseconds())
            assert newest - event.event_time.ToMicroseconds() < 5 * 60 * 1_000_000


def test_a_prompt_fleet():
    """Every event of a prompt fleet arrives when it happens, so they arrive in order of time."""
    times = [
        event.event_time.ToMicroseconds()
        for one in simulate(fleet_of(prompt=True, malformed=0))
        for event in one.events
    ]
    assert times == sorted(times)
