"""Tables of other programs: adopt takes over those that fit, and leaves the others unchanged."""

import json
import math
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipeline.cloud.connection.key_ranges import Sample
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import retention_of
from pipeline.cloud.tables.schema_store import read_schema
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.gc_policies import format_policy
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.table import adopt
from tests.support.tables import write as write_rows
from tests.table.running import create, in_file, overtake, policies, run

FAMILIES = {"raw": "never", "stats": "maxversions=1", "meta": "never"}
NOON = datetime(2026, 2, 17, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# What another program writes without our code: keys and cells as docs/schemas.md describes them.
Cells = dict[tuple[str, str], tuple[str, datetime]]


def text(value: float) -> str:
    return repr(value).removesuffix(".0")


def filled(sensors: int = 3, hours: int = 3, a_hour: int = 4) -> dict[str, Cells]:
    """Rows of a small fleet in the default format, with the aggregates of its hours."""
    rows: dict[str, Cells] = {}
    for sensor in (f"s{number}" for number in range(sensors)):
        for hour in range(hours):
            start = NOON + timedelta(hours=hour)
            by_metric = defaultdict(list)
            for number in range(a_hour):
                at = start + timedelta(minutes=7 * number, microseconds=123_456)
                readings = {"temperature": 20 + number / 3 + hour, "pressure": 94_000.0 + number}
                reverse = 9_999_999_999_999_999 - (at - EPOCH) // timedelta(microseconds=1)
                rows[f"{sensor}#{reverse}"] = {
                    **{("raw", metric): (text(value), at) for metric, value in readings.items()},
                    ("meta", "location"): ("north", at),
                }
                for metric, value in readings.items():
                    by_metric[metric].append(value)
            cells: Cells = {("stats", "reading_count"): (str(a_hour), start)}
            for metric, values in by_metric.items():
                mean = sum(values) / len(values)
                deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
                statistics = {"count": float(len(values)), "sum": sum(values), "min": min(values), "max": max(values)}
                statistics |= {"avg": mean, "stddev": deviation}
                for name, value in statistics.items():
                    cells["stats", f"{name}_{metric}"] = text(value), start
            rows[f"agg#hourly#{sensor}#{start:%Y-%m-%dT%H}"] = cells
    return rows


def write(name: TableName, rows: dict[str, Cells]) -> None:
    write_rows(
        name,
        [
            Row(
                key.encode(),
                [
                    Cell(family, qualifier.encode(), (at - EPOCH) // timedelta(milliseconds=1) * 1000, value.encode())
                    for (family, qualifier), (value, at) in cells.items()
                ],
            )
            for key, cells in rows.items()
        ],
    )


def first(rows: dict[str, Cells], start: str) -> str:
    return next(key for key in rows if key.startswith(start))


@pytest.fixture
def foreign(name: TableName) -> TableName:
    """Another program's table, with our families and no rows."""
    create(name, **FAMILIES)
    return name


def test_a_table_in_the_default_format(foreign: TableName) -> None:
    """Adopt reports on it, and stores the default schema with the table's policies; a dry run stores nothing."""
    write(foreign, filled())
    dry = run("adopt", foreign, "--dry-run")
    assert (dry.exit_code, dry.stderr) == (0, "")
    record = json.loads(run("adopt", foreign, "--dry-run", "--format=json").stdout)
    assert (record["fits"], record["stored"], record["misfits"]) == (True, False, {})
    assert (record["schema"]["policies"], record["windows_compared"]) == (FAMILIES, 9)
    assert policies(foreign) == FAMILIES
    reported = [
        "schema: key {sensor_id}#{reverse_us}, layout wide, values text",
        "family raw: policy is never",
        "family meta: policy is never",
        "family stats: policy is maxversions=1",
        "checked all 36 raw rows",
        "checked all 9 aggregate rows of 1h",
        "checked 0 rows of the work list",
        "compared 9 windows with the raw rows",
    ]
    assert dry.stdout.splitlines() == [*reported, f"table {foreign} fits; nothing was changed"]
    done = run("adopt", foreign)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [*reported, f"table {foreign} has this schema now"]
    assert policies(foreign) == {**FAMILIES, "tidetable": "never"}
    schema = read_schema(foreign)
    assert schema is not None
    assert (schema.key, schema.layout) == (TableSchema.default().key, TableSchema.default().layout)
    assert {family: format_policy(policy) for family, policy in schema.policies.items()} == FAMILIES
    assert run("diff", foreign).exit_code == 0


def test_a_table_without_rows(foreign: TableName) -> None:
    """Without rows, adopt has nothing to check."""
    result = run("adopt", foreign)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: table {foreign} has no rows; 'tidetable table apply' stores")


def test_another_program_is_first(foreign: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that another program stores meanwhile stays."""
    write(foreign, filled(1, 1))
    others = parse_schema('[tiers]\n1h = "stats"\n1d = "days"')
    overtake(monkeypatch, foreign, others, None)
    result = run("adopt", foreign)
    assert result.exit_code == 1
    assert "another program has stored a schema meanwhile" in result.stderr
    assert read_schema(foreign) == others


TALL = 'layout = "tall"\nkey = "{salt:2}#{sensor_id}#{metric}#{reverse_us}"\nvalues = "float64"\n'


def test_a_table_in_another_layout(name: TableName, tmp_path: Path) -> None:
    """With the schema in a file, adopt checks any layout; repair creates the rows of an empty tier."""
    schema = parse_schema(TALL)
    create(name, **dict.fromkeys(schema.families, "never"))
    start_us = parse_time("2026-02-17T12:00:00Z")
    events = [
        Event(f"s{i % 2}", start_us + i * 60_000_000, {"t": i / 7, "u": 5.0}, {"location": "n"}) for i in range(20)
    ]
    write_rows(name, [row for event in events for row in schema.rows(event)])
    path = in_file(tmp_path, TALL)
    result = run("adopt", name, "--schema", path)
    assert result.exit_code == 0, result.output
    assert "the table has no aggregate rows of 1h: 'tidetable repair' creates them" in result.stdout
    stored = read_schema(name)
    assert stored is not None
    assert (stored.layout, stored.key) == (schema.layout, schema.key)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


MISFITS = {
    "a key of no event": ({"foo": {("raw", "t"): ("1", at(0))}}, "'foo': its key does not fit"),
    "a value that is no number": (
        {"s1#8228676000000000": {("raw", "t"): ("warm", EPOCH)}},
        "its cells can't be read as layout wide: b'warm' is not a number",
    ),
    "the time of writing": (
        {"s1#8228676000000000": {("raw", "t"): ("1", at(0))}},
        "cell raw:t has the timestamp 2026-02-17T12:00:00Z instead of 2026-02-17T10:26:39.999Z",
    ),
    "a column that is no metric": (
        {"s1#8228676000000000": {("raw", "t (°C)"): ("1", EPOCH)}},
        "its cells can't be read as layout wide: column 't (°C)' is not a name: "
        "it does not match [A-Za-z_][A-Za-z0-9_.-]{0,127}",
    ),
    "a reading among aggregates": (
        {"s1#8228676000000000": {("stats", "t"): ("1", EPOCH)}},
        "the schema would not write cell stats:t",
    ),
    "a part of an aggregate": (
        {"agg#hourly#s9#2026-02-17T12": {("stats", "reading_count"): ("1", at(0)), ("stats", "sum_t"): ("1", at(0))}},
        "it lacks avg_t, count_t, max_t …",
    ),
    "an aggregate of no hour": (
        {"agg#hourly#s9#2026-2-17T9": {("stats", "reading_count"): ("1", at(0))}},
        "is not the key of a window of 1h",
    ),
    "aggregates of other windows": (
        {"agg#daily#s1#2026-02-17": {("stats", "reading_count"): ("12", at(-720))}},
        "'agg#daily#s1#2026-02-17': the schema has no tier of such windows",
    ),
    "a work list of another kind": ({"repair#x": {("raw", "t"): ("1", at(0))}}, "'repair#x': its key does not fit"),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_row_that_does_not_fit(foreign: TableName, kind: str) -> None:
    """Adopt names it with the reason, and leaves the table unchanged."""
    rows, says = MISFITS[kind]
    write(foreign, filled() | rows)
    result = run("adopt", foreign)
    assert result.exit_code == 1
    assert says in result.stdout
    assert result.stderr == f"table {foreign} is unchanged: it does not fit\n"
    assert policies(foreign) == FAMILIES
    assert read_schema(foreign) is None


def test_the_first_few_are_named(foreign: TableName) -> None:
    """Adopt names three of many misfits, and reports their number, also as JSON."""
    write(foreign, filled(1, 1) | {f"foo{i}": {("raw", "t"): ("1", NOON)} for i in range(9)})
    result = run("adopt", foreign, "--format=json")
    assert result.exit_code == 1
    record = json.loads(result.stdout)
    assert (record["fits"], record["stored"]) == (False, False)
    assert record["looked_at"]["raw rows"] == {"rows": 13, "all": True}
    assert record["misfits"]["raw rows"]["count"] == 9
    assert [each.partition(":")[0] for each in record["misfits"]["raw rows"]["first"]] == ["'foo0'", "'foo1'", "'foo2'"]


def test_a_table_that_keeps_older_rows(name: TableName) -> None:
    """Adopt leaves the policy of aggregates, and names the command that makes it keep one version."""
    create(name, **FAMILIES | {"stats": "maxage=30d"})
    write(name, filled(1, 1))
    for options in ([], ["--gc", "stats=maxage=30d"]):
        result = run("adopt", name, *options, "--dry-run")
        assert result.exit_code == 0, result.output
        says = "family stats: policy is maxage=30d; 'tidetable table apply' adds maxversions=1"
        assert says in result.stdout.splitlines()
    assert run("adopt", name).exit_code == 0
    assert policies(name)["stats"] == "maxage=30d"
    assert run("apply", name).exit_code == 0
    assert policies(name)["stats"] == "maxage=30d || maxversions=1"


def test_a_missing_family(name: TableName) -> None:
    """Adopt names it, and does not create it."""
    create(name, raw="never", stats="never", extra="never")
    rows = {key: {c: v for c, v in cells.items() if c[0] != "meta"} for key, cells in filled(1, 1).items()}
    write(name, rows)
    result = run("adopt", name)
    assert result.exit_code == 1
    assert "family meta is missing; create it, or name the existing one" in result.stdout
    assert "family extra was not requested and is left alone" in result.stdout
    assert set(policies(name)) == {"raw", "stats", "extra"}
    assert run("adopt", name, "--meta-family", "extra").exit_code == 0


@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        ("maxage=9999d", [], None),
        ("maxage=9999d", ["--gc", "raw=maxage=9999d"], None),
        ("maxage=9999d", ["--gc", "raw=maxage=30d"], "family raw: policy is maxage=9999d, wanted maxage=30d"),
        ("maxversions=1", ["--key", "{sensor_id}#{reverse_s}"], "policies.raw: maxversions would collect events"),
    ],
)
def test_policies(name: TableName, policy: str, options: list[str], says: str | None) -> None:
    """Adopt keeps the table's policies; a different requested policy, or an invalid one, does not fit."""
    create(name, **FAMILIES | {"raw": policy})
    write(name, filled(1, 1))
    result = run("adopt", name, *options)
    assert result.exit_code == (1 if says else 0), result.output
    if says:
        assert says in result.stdout
        assert policies(name) == FAMILIES | {"raw": policy}
    else:
        assert policies(name) == FAMILIES | {"raw": policy, "tidetable": "never"}
        assert run("diff", name).exit_code == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("sum_temperature", "sum_temperature is 1.0, but "),
        ("reading_count", "reading_count is 1.0, but 4.0 by its raw rows"),
        ("gone", "reading_count is missing, but 4.0 by its raw rows"),
        ("alone", "avg_pressure is 94001.5, but nothing by its raw rows (and 12 more)"),
    ],
)
def test_aggregates_that_are_wrong(foreign: TableName, change: str, says: str) -> None:
    """An aggregate that differs from its raw rows, is missing, or has no raw rows does not fit."""
    rows = filled()
    key = first(rows, "agg#hourly#s2")
    if change == "gone":
        del rows[key]
    elif change == "alone":
        rows = {each: cells for each, cells in rows.items() if not each.startswith("s2#")}
    else:
        rows[key]["stats", change] = ("1", rows[key]["stats", change][1])
    write(foreign, rows)
    result = run("adopt", foreign)
    assert result.exit_code == 1
    assert f"'{key}': {says}" in result.stdout
    assert read_schema(foreign) is None


def test_windows_of_time_zones_are_compared(name: TableName, tmp_path: Path) -> None:
    """Windows that do not nest are compared with their raw rows too, each kind apart."""
    text = """tiers = { 1h = "hours", 1d = "days", "1d@Europe/Berlin" = "berlin", "1w@Europe/Berlin" = "weeks" }\n"""
    schema = parse_schema(text)
    create(name, **dict.fromkeys(schema.families, "never"))
    start_us = parse_time("2026-02-16T20:00:00Z")
    events = [Event("s", start_us + i * 1_800_000_000, {"t": float(i)}, {}) for i in range(10)]
    rows = [row for event in events for row in schema.rows(event)]
    stats: dict = defaultdict(WindowStats)
    for tier in schema.tiers:
        for event in events:
            stats[tier, tier.window.start_of(event.event_time_us)].add(event.readings)
    aggregates = [aggregate_row(tier.window, "s", at_us, of, tier.family) for (tier, at_us), of in stats.items()]
    weeks, fewer = schema.tiers[-1], WindowStats()
    (week_us,) = (at_us for tier, at_us in stats if tier == weeks)
    for event in events[1:]:
        fewer.add(event.readings)
    week = aggregate_row(weeks.window, "s", week_us, fewer, weeks.family)
    write_rows(name, [*rows, week, *(row for row in aggregates if row.key != week.key)])
    result = run("adopt", name, "--schema", in_file(tmp_path, text))
    assert result.exit_code == 1
    assert "'agg#weekly@Europe/Berlin#s#2026-02-16': reading_count is 9.0, but 10.0 by its raw rows" in result.stdout
    write_rows(name, aggregates)
    result = run("adopt", name, "--schema", in_file(tmp_path, text))
    assert result.exit_code == 0, result.output
    assert f"compared {len(aggregates)} windows" in result.stdout


def test_what_may_be_collected_is_not_compared(name: TableName) -> None:
    """Aggregates outlive their raw rows: a window whose raw rows may be collected is not compared."""
    create(name, raw="maxage=1d", stats="never", meta="maxage=1d")
    write(name, {key: cells for key, cells in filled().items() if key.startswith("agg#")})
    result = run("adopt", name)
    assert result.exit_code == 0, result.output
    assert "compared 0 windows" in result.stdout


def test_a_sample(foreign: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample has the newest and oldest rows of each sensor, so a misfit among them is found."""
    # The emulator samples keys at random.
    monkeypatch.setattr(adopt, "sampled_keys", lambda _: [Sample(b"s5#", 1), Sample(b"", 2)])
    rows = filled(sensors=10, hours=2, a_hour=8)
    write(foreign, rows)
    result = run("adopt", foreign, "--sample", "100", "--format=json", "--dry-run")
    record = json.loads(result.stdout)
    assert record["fits"], result.output
    inspected = record["looked_at"]["raw rows"]
    assert inspected == {"rows": 100, "all": False}
    assert record["looked_at"]["aggregate rows of 1h"] == {"rows": 20, "all": True}
    write(foreign, {"s3#zzz": {("raw", "t"): ("1", NOON)}, "s30": {("raw", "t"): ("1", NOON)}})
    result = run("adopt", foreign, "--sample", "100")
    assert result.exit_code == 1
    assert "raw rows that do not fit: 2" in result.stdout


def test_windows_of_many_rows(foreign: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adopt bounds the rows that it reads to compare windows, and reports what it left out."""
    monkeypatch.setattr(adopt, "_ROWS_A_SAMPLE", 0)
    write(foreign, filled())
    result = run("adopt", foreign, "--dry-run")
    assert result.exit_code == 0
    assert "the remaining windows were not compared: they have too many raw rows" in result.stdout


@pytest.mark.parametrize("command", ["adopt", "apply"])
def test_tiers_without_rows(command: str, name: TableName) -> None:
    """The table notes that its earlier rows count in none of their windows."""
    create(name, **FAMILIES, days="never")
    write(name, filled())
    assert run(command, name, "--tier", "1h=stats", "--tier", "1d=days").exit_code == 0
    schema = read_schema(name)
    assert schema is not None
    retention = retention_of(name, schema, tables.describe(name))
    assert [retention.counts(tier, parse_time("2026-02-17")) for tier in schema.tiers] == [True, False]
