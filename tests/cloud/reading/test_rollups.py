"""Roll-ups as programs read them, from rows as the job writes them."""

import math

import pytest

from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.events.event import Event
from pipeline.core.queries.reads import TooManyRowsError
from pipeline.core.rows.rollup_rows import FAMILY, rollup_key
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from tests.support.rollups import table_with_rollups
from tests.support.tables import HOUR, T, write

pytestmark = [pytest.mark.on_both, pytest.mark.filterwarnings("ignore:Connecting to Bigtable emulator")]

SCHEMA = parse_schema("""\
[tiers]
1h = "hours"
"1d@Europe/Berlin" = "days"
[statistics]
t = ["avg", "min", "max", "p95", "increase", "rate", "coverage", "last"]
[rate]
every = "10m"
sensors = 4
[rollups]
site = { by = "metadata.site", tiers = ["1h"] }
model = { by = ["metadata.site", "metadata.model"] }
fleet = { by = [], metrics = ["t"] }
""")
MINUTE = HOUR // 60
LONG = "é" * 100


def events(sensor_id, site, *hours, model="m1", start=0.0):
    """Returns an event each ten minutes of some hours."""
    fields = {"site": site, "model": model} if site else {}
    return [
        Event(sensor_id, T + hour * HOUR + n * 10 * MINUTE, {"t": start + n + hour, "u": 1.0}, fields)
        for hour in hours
        for n in range(6)
    ]


EVENTS = [
    *events("a", "north", 0, 1, 2),
    *events("b", "north", 0, 2, start=10),
    *events("c", "Süd/2 #1", 0, 1, model="m 2", start=100),
    *events("c", "north", 2, start=100),  # it moved
    *events("d", LONG, 1, start=-50),
    *events("lost", "", 1, start=1000),
]


@pytest.fixture(scope="module")
def name(bigtable):
    return table_with_rollups(SCHEMA, EVENTS)


@pytest.fixture
def table(name):
    with SensorTable.open(name.project, name.instance, name.table) as opened:
        yield opened
        assert opened.foreign.count == 0


def hours(records):
    return [(record.start_us - T) // HOUR for record in records]


def test_the_windows_of_a_group(table):
    """They are what the aggregates of the sensors that belong to the group amount to, and tell how many these are."""
    found = list(table.rollups("site", "north", T, T + 3 * HOUR))
    assert hours(found) == [0, 1, 2]
    assert [record.sensors for record in found] == [2, 1, 3]
    assert [record.reading_count for record in found] == [12, 6, 18]
    assert {record.expected for record in found} == {None}
    assert found[0].group.fields == {"site": "north"}
    sensors = list(table.aggregates(["a", "b"], T, T + HOUR, metrics=["t"]))
    merged = found[0].metrics["t"]
    assert merged.count == 12
    assert merged.more["increase"] == sum(each.metrics["t"].more["increase"] for each in sensors)
    assert merged.avg == pytest.approx(7.5)
    assert (merged.min, merged.max, merged.more["coverage"]) == (0, 15, 1.0)
    assert "last" not in merged.more
    assert merged.value("p50") == pytest.approx(7.5, rel=0.5)


def test_the_values_of_fields(table):
    """Whatever characters they have, and however long they are."""
    [record] = table.rollups("model", ["Süd/2 #1", "m 2"], T, T + HOUR, metrics=["u"])
    assert record.group.fields == {"site": "Süd/2 #1", "model": "m 2"}
    assert list(record.metrics) == ["u"]
    [long] = table.rollups("site", LONG, T, T + 3 * HOUR)
    assert long.group.fields == {"site": LONG}
    [again] = [each for each in table.groups("site", T) if each.group == long.group]
    assert again.group.fields == {"site": "é" * 30 + "…"}
    assert hours(table.rollups("site", again.group, T, T + 3 * HOUR)) == [1]


def test_gaps(table):
    """Windows without a row are filled as those of sensors are."""
    found = list(table.rollups("site", LONG, T, T + 3 * HOUR, fill="previous", metrics=["t"]))
    assert [(each.filled, each.sensors) for each in found] == [(True, 0), (False, 1), (True, 0)]
    assert found[2].metrics["t"].avg == found[1].metrics["t"].avg
    with pytest.raises(ValueError, match="too many to fill"):
        table.rollups("site", "north", 0, T, fill="null")


def test_a_longer_tier(table):
    """Windows of a calendar."""
    [record] = table.rollups("fleet", (), "2026-02-16T23:00Z", "2026-02-17T23:00Z", tier="1d@Europe/Berlin")
    assert record.sensors == 5
    assert record.reading_count == len(EVENTS)


def test_groups(table):
    """Those of the newest window of any group, in the order of keys; before a time; or of a range, merged."""
    assert [(each.group.label, each.sensors) for each in table.groups("site")] == [("north", 3)]
    assert hours(table.groups("site")) == [2]
    before = list(table.groups("model", end=T + 2 * HOUR))
    assert [each.group.label for each in before] == ["é" * 30 + "…", "Süd/2 #1 / m 2", "north / m1"]
    assert hours(before) == [1, 1, 1]
    assert [each.group.text for each in table.groups("model", T, T + HOUR)] == ["S%C3%BCd%2F2%20%231/m%202", "north/m1"]
    assert list(table.groups("site", T - 2 * HOUR, T)) == []
    assert [each.group.text for each in table.groups("fleet")] == ["all"]


def test_a_range_of_a_group(table):
    """It is what all readings amount to, not the average of averages."""
    of_range = {each.group.label: each for each in table.groups("site", T, T + 3 * HOUR)}
    north = of_range["north"]
    assert (north.windows, north.sensors, north.reading_count, hours([north])) == (3, 3, 36, [0])
    values = [
        event.readings["t"]
        for event in EVENTS
        if event.metadata.get("site") == "north" and T <= event.event_time_us < T + 3 * HOUR
    ]
    summary = north.metrics["t"]
    assert summary.count == len(values)
    assert summary.avg == pytest.approx(math.fsum(values) / len(values))
    assert (summary.min, summary.max) == (min(values), max(values))
    assert summary.more["coverage"] == 1.0
    assert north.metrics["u"].sum == len(values)
    windows = list(table.rollups("site", "north", T, T + 3 * HOUR, metrics=["t"]))
    assert summary.more["increase"] == sum(each.metrics["t"].more["increase"] for each in windows)
    assert summary.more["rate"] == pytest.approx(sum(each.metrics["t"].more["rate"] for each in windows) / 3)
    assert summary.more["p95"] == pytest.approx(sorted(values)[round(0.95 * (len(values) - 1))], rel=0.02)


def test_the_first_groups(table):
    """Groups are ranked by any statistic, also a quantile that rows lack, or by the number of sensors or events."""
    ranked = {
        by: [each.group.fields["site"][:5] for each in table.groups("site", T, T + 3 * HOUR, by=by)]
        for by in ("avg_t", "min_t", "p50_t", "sensors", "reading_count")
    }
    assert ranked["avg_t"] == ranked["p50_t"] == ranked["min_t"] == ["Süd/2", "north", "ééééé"]
    assert ranked["sensors"][0] == ranked["reading_count"][0] == "north"
    [first] = table.groups("site", T, by="max_t", top=1)
    assert list(first.metrics) == ["t"]
    assert list(table.groups("site", T, by="avg_missing")) == []
    [both] = table.groups("site", T, by="max_t", top=1, metrics=["u"])
    assert list(both.metrics) == ["t", "u"]


def test_a_window_that_all_sensors_have_left(table, name):
    """Groups without a sensor in the newest window are no answer: the window before is."""
    key = rollup_key(HOURLY, "site", "empty", T + 9 * HOUR)
    write(name, [Row(key, [Cell(FAMILY, b"sensors", T + 9 * HOUR + 1000, b"0")])])
    assert hours(table.groups("site")) == [2]
    assert list(table.rollups("site", "empty", T, T + 10 * HOUR)) == []


def test_the_sensors_of_a_group(table):
    """Those that named it by their newest event of the window."""
    assert sorted(table.sensors_of_group("site", "north")) == ["a", "b", "c"]
    assert sorted(table.sensors_of_group("site", "north", T + 2 * HOUR)) == ["a"]
    assert list(table.sensors_of_group("model", ("Süd/2 #1", "m 2"))) == ["c"]
    assert sorted(table.sensors_of_group("fleet", (), T + 2 * HOUR)) == ["a", "c", "d", "lost"]
    assert list(table.sensors_of_group("site", "nowhere")) == []


def test_the_groups_of_a_sensor(table):
    """Those of its newest window."""
    assert [(each.rollup, each.label) for each in table.groups_of_sensor("c")] == [
        ("site", "north"),
        ("model", "north / m1"),
        ("fleet", "fleet"),
    ]
    assert [each.rollup for each in table.groups_of_sensor("lost")] == ["fleet"]
    assert table.groups_of_sensor("nobody") == []


def test_frames(table):
    """Columns are the fields, then those of aggregates."""
    frame = table.groups("model", T, T + HOUR).to_arrow()
    assert frame.column_names[:8] == [
        "site",
        "model",
        "window_start",
        "window",
        "reading_count",
        "sensors",
        "count_t",
        "min_t",
    ]
    assert frame.column("site").to_pylist() == ["Süd/2 #1", "north"]
    assert table.rollups("fleet", (), T, T + HOUR).to_arrow().column("expected").to_pylist() == [4]


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda t: t.rollups("area", "x", 0, T), "the table has no roll-up 'area'; its roll-ups: site, model, fleet"),
        (lambda t: t.rollups("model", "x", 0, T), "1 value for the roll-up model, which takes 2, of site and model"),
        (lambda t: t.rollups("fleet", "x", 0, T), "1 value for the roll-up fleet, which takes none: it has one group"),
        (
            lambda t: t.groups("site", tier="1d@Europe/Berlin"),
            "the roll-up site has no aggregates of 1d@Europe/Berlin; its tiers: 1h",
        ),
        (lambda t: t.groups("site", by="t"), "groups can't be ranked by 't'; name a statistic and its metric"),
        (lambda t: t.groups("site", by="window_sizes"), "can't be ranked by 'window_sizes'"),
        (lambda t: t.sensors_of_group("site", ()), "0 values for the roll-up site, which takes 1, of site"),
        (lambda t: t.groups_of_sensor("a#"), "sensor"),
    ],
)
def test_what_has_no_answer(table, ask, problem):
    """The call raises a line that tells what there is."""
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        ask(table)


def test_a_bounded_answer(table):
    """A list of groups reads no more rows than allowed."""
    with pytest.raises(TooManyRowsError):
        table.groups("site", T, max_rows=3)


def test_rows_of_others(name):
    """A row that no roll-up writes is left out and counted."""
    schema = parse_schema('[rollups]\nsite = { by = "metadata.site" }')
    other = table_with_rollups(schema, EVENTS)
    key = rollup_key(HOURLY, "site", "north", T)
    write(other, [Row(key, [Cell(FAMILY, b"sensors", T + 5_000_000, b"x")])])
    write(other, [Row(b"rollup#hourly#site#a%2#2026-02-17T10", [Cell(FAMILY, b"sensors", T, b"1")])])
    with SensorTable.open(other.project, other.instance, other.table) as table:
        assert hours(table.rollups("site", "north", T, T + 3 * HOUR)) == [1, 2]
        assert table.foreign.count == 1
        assert "a%2" not in [each.group.text for each in table.groups("site", T)]
        assert table.foreign.count == 2
