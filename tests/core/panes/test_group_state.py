"""What a firing reads and writes of a group's state."""

from collections import Counter

from pipeline.core.panes.group_state import Bags
from pipeline.core.schema.toml import parse_schema
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


def read_by(counts, call):
    """Returns the bags that a call reads."""
    counts.clear()
    call()
    return {name for (name, what), number in counts.items() if what == "reads" and number}


def test_what_each_firing_reads():
    """Early panes read open windows, and late panes only marks."""
    group, counts = group_of()
    send(group, 62, 1)
    assert read_by(counts, group.pass_time) == {"parts", "open"}
    assert read_by(counts, lambda: group.watermark(T + HOUR + LATENESS)) == {"open"}
    send(group, 2, 1)
    assert read_by(counts, group.pass_time) == {"marks"}
    assert not counts["open", "added"]
    assert group.row(HOURS, "s-1", T) == (2, 2)


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


def test_a_table_with_longer_tiers():
    """A late pane writes the day too, whether that is open or closed, and reads no more state."""
    group, counts = group_of(parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"\n1d = "days"'))
    days = group.schema.tiers[1]
    group.watermark(T + HOUR + LATENESS)
    send(group, 62, 1)
    assert read_by(counts, group.pass_time) == {"parts", "open"}
    send(group, 2, 1)
    assert read_by(counts, group.pass_time) == {"marks"}
    assert (group.row(HOURS, "s-1", T), group.row(days, "s-1", T)) == ((2, 2), (4, 4))
    group.watermark(T + 24 * HOUR + LATENESS)
    send(group, 4, 1, 2)
    group.pass_time()
    assert [group.row(days, f"s-{n}", T) for n in (1, 2)] == [(5, 5), (3, 3)]


def test_days_have_no_state():
    """A group has the same state with days as without, after its hours are over."""
    sizes = []
    for tiers in ('1h = "hours"', '1h = "hours"\n1d = "days"'):
        group, _ = group_of(parse_schema(f'[policies]\nraw = "never"\n[tiers]\n{tiers}'))
        group.watermark(T + HOUR)
        sizes.append(sum(map(len, group.bags.open)))
    assert sizes[0] == sizes[1]
