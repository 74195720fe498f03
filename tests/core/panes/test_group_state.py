"""What a firing reads and writes of a group's state."""

import random
from collections import Counter

import pytest

from pipeline.core.panes import group_state
from pipeline.core.panes.group_state import Bags
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.toml import parse_schema
from tests.support.exhaustive import examples
from tests.support.groups import LATENESS, MINUTE, CountingBag, Group, event

SCHEMA = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
(HOURS,) = SCHEMA.tiers
HOUR = HOURS.window.length_us
T = 1_771_286_400_000_000  # midnight
NAMES = ("parts", "marks", "open")


def counting(counts):
    return Bags(*(CountingBag(name, counts) for name in NAMES))


def group_of(schema=SCHEMA, sensors=20):
    """Returns a group at the end of its first hour, in which each sensor has sent something, and its counts."""
    group, counts = Group(schema, T + HOUR), Counter()
    group.bags = counting(counts)
    send(group, 1, *range(sensors))
    send(group, 61, *range(sensors))
    group.pass_time()
    return group, counts


def send(group, minutes, *sensors, value=1.0):
    group.receive(*(event(f"s-{n}", T + minutes * MINUTE, {"t": value}) for n in sensors))


def test_a_late_reading_takes_a_mark():
    """However many sensors a group has, and whatever the late readings are."""
    written = []
    for sensors in (20, 200):
        group, counts = group_of(sensors=sensors)
        group.watermark(T + HOUR + LATENESS)
        counts.clear()
        send(group, 2, 1)
        group.pass_time()
        written.append(sum(number for (_, what), number in counts.items() if what == "added"))
    assert written[0] == written[1] < 40


def test_days_have_no_state():
    """A group has the same state with days as without, after its hours are over."""
    sizes = []
    for tiers in ('1h = "hours"', '1h = "hours"\n1d = "days"'):
        group, _ = group_of(parse_schema(f'[policies]\nraw = "never"\n[tiers]\n{tiers}'))
        group.watermark(T + HOUR)
        sizes.append(sum(map(len, group.bags.open)))
    assert sizes[0] == sizes[1]


def updated(group, monkeypatch):
    """Goes on with a release whose formats of state are others, and can't read what the one before kept."""
    version, *others = group_state._VERSIONS
    monkeypatch.setattr(group_state, "_VERSIONS", bytes([version % 255 + 1, *others]))
    for number, chunk in enumerate(group.bags.open):
        group.bags.open[number] = chunk[:-1]


def test_an_update_to_a_release_with_other_formats(monkeypatch):
    """The windows in the state are woken: they have all that came before, and the panes that are due fire."""
    group, _ = group_of()
    send(group, 62, 2)
    updated(group, monkeypatch)
    send(group, 63, 1)
    group.pass_time()
    assert (group.row(HOURS, "s-1", T + HOUR), group.row(HOURS, "s-2", T + HOUR)) == ((2, 2), (2, 2))
    updated(group, monkeypatch)
    send(group, 3, 3)
    group.watermark(T + HOUR + LATENESS)
    assert (group.row(HOURS, "s-3", T), group.row(HOURS, "s-4", T)) == ((2, 2), (1, 1))
    updated(group, monkeypatch)
    send(group, 4, 3)
    group.pass_time()
    assert group.row(HOURS, "s-3", T) == (3, 3)


@pytest.mark.parametrize("early_us", [0, 5 * MINUTE])
@pytest.mark.parametrize("seed", range(examples(20)))
def test_updates_at_any_time(monkeypatch, seed, early_us):
    """Every row counts every reading, whenever releases with other formats take over, and each result has a number."""
    chance = random.Random(seed)
    schema = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"')
    group = Group(schema, T, early_us=early_us, results=ResultRules(T, early=True))
    sent = Counter()
    for _ in range(40):
        match chance.choice(["send", "send", "watermark", "time", "update"]):
            case "send":
                for _ in range(chance.randint(1, 4)):
                    sensor, minute = chance.randint(0, 3), chance.randint(0, 400)
                    send(group, minute, sensor)
                    sent[sensor, minute] = 1
            case "watermark":
                group.watermark(T + chance.randint(0, 400) * MINUTE)
            case "time":
                group.pass_time(chance.randint(1, 20) * MINUTE)
            case "update":
                updated(group, monkeypatch)
    group.watermark(T + 26 * HOUR)
    group.pass_time(HOUR)
    expected = Counter()
    for sensor, minute in sent:
        expected[HOURS, f"s-{sensor}", T + minute // 60 * HOUR] += 1
        expected[schema.tiers[1], f"s-{sensor}", T] += 1
    assert {key: group.row(*key)[0] for key in expected} == expected
    last = {}
    for result in group.published:
        key = result.event_id.split("/")[0]
        assert last.get(key, "") < result.event_id
        last[key] = result.event_id
