"""Tables with roll-ups: created, changed, described, and adopted."""

import json
from pathlib import Path

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.schema_store import read_schema
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.rows import EncodedRow, encoded
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.member import Member, member_text
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from tests.support.rollups import encoded_rollup_rows
from tests.table.running import NEWEST, create, in_file, lines, policies, run

ROLLUPS = """\
[rollups]
site = {by = "metadata.site", metrics = ["temp*"]}
fleet = {by = []}
"""
START_US = parse_time("2026-02-17T12:00:00Z")
TELLS = (
    "roll-ups site, fleet: jobs that start or are updated from now on write them; 'tidetable repair --rollups' "
    "computes earlier windows"
)


def rows_of(schema: TableSchema, sensors: int = 3) -> list[EncodedRow]:
    """Returns the rows of an hour: raw, aggregate, and those of roll-ups."""
    (tier,) = schema.tiers
    rows: list[EncodedRow] = []
    windows: dict[tuple[int, str, int], WindowStats] = {}
    for sensor_id in (f"s{number}" for number in range(sensors)):
        stats = windows[0, sensor_id, START_US] = WindowStats()
        stats.events, stats.metrics["temperature"] = 1, MetricStats.of((20.5,))
        if schema.member_fields:
            stats.member = Member(START_US, member_text(schema.member_fields, {"site": "north"}))
        event = Event(sensor_id, START_US, {"temperature": 20.5}, {"site": "north"}, "")
        rows += map(encoded, schema.rows(event))
        rows.append(encoded_aggregate_row(tier.window, sensor_id, START_US, stats, tier.family, tier.statistics))
    return [*rows, *(encoded_rollup_rows(schema, windows) if schema.rollups else ())]


def write(name: TableName, rows: list[EncodedRow]) -> None:
    with BulkWriter.open(name) as writer:
        writer.add_encoded(rows)
        assert not writer.finish()


def test_a_new_table(name: TableName, tmp_path: Path) -> None:
    """Create adds the family of roll-ups, and describe prints them with example keys and shards."""
    created = run("create", name, "--schema", in_file(tmp_path, ROLLUPS))
    assert created.exit_code == 0, created.output
    assert f"family rollup: policy is {NEWEST}" in lines(created)
    described = run("describe", name)
    assert ROLLUPS + "shards = 256\n" in described.stdout
    keys = {"site": "rollup#hourly#site#site#2026-02-17T10", "fleet": "rollup#hourly#fleet#all#2026-02-17T10"}
    assert {f"roll-up {rollup} {key}" for rollup, key in keys.items()} <= set(lines(described))
    record = json.loads(run("describe", name, "--format=json").stdout)
    assert record["schema"]["rollups"]["site"] == {"by": "metadata.site", "metrics": ["temp*"]}
    assert run("diff", name, "--schema", in_file(tmp_path, ROLLUPS)).exit_code == 0


def test_a_table_with_data(name: TableName, tmp_path: Path) -> None:
    """Roll-ups are added to a table with rows, and one line tells how their past is computed; shards stay."""
    assert run("create", name).exit_code == 0
    write(name, rows_of(TableSchema.default())[:2])
    path = in_file(tmp_path, ROLLUPS)
    result = run("apply", name, "--schema", path)
    assert result.exit_code == 0, result.output
    assert lines(result)[-2:] == [f"table {name} changed: it has the requested schema now", TELLS]
    assert policies(name)["rollup"] == NEWEST
    assert run("apply", name, "--schema", path).stdout.endswith("nothing to do\n")

    more = in_file(tmp_path, ROLLUPS + '[rate]\nevery = "1m"\nsensors = 10_000_000')
    result = run("apply", name, "--schema", more)
    assert (result.exit_code, "roll-ups" in result.stdout) == (0, False), result.output
    schema = read_schema(name)
    assert schema is not None
    assert (schema.rollup_shards, [rollup.name for rollup in schema.rollups]) == (256, ["site", "fleet"])

    none = in_file(tmp_path, "[rollups]")
    assert run("apply", name, "--schema", none).exit_code == 0
    schema = read_schema(name)
    assert schema is not None
    assert (schema.rollup_shards, schema.rollups) == (256, ())


@pytest.mark.parametrize("changed", [ROLLUPS.replace("metadata.site", "metadata.floor"), ROLLUPS + "shards = 512"])
def test_changes_that_rows_do_not_fit(name: TableName, tmp_path: Path, changed: str) -> None:
    """Other groups of the same name, and other shards, are refused in one line, with nothing changed."""
    run("create", name, "--schema", in_file(tmp_path, ROLLUPS))
    before = run("describe", name).stdout
    write(name, rows_of(parse_schema(ROLLUPS)))
    result = run("apply", name, "--schema", in_file(tmp_path, changed))
    assert result.exit_code == 1
    assert result.stderr.startswith("rollups.")
    assert result.stderr.splitlines()[1:] == [f"table {name} is unchanged"]
    assert run("describe", name).stdout == before


FOREIGN = {"raw": "never", "stats": "never", "meta": "never", "rollup": "never"}


def test_adopt(name: TableName, tmp_path: Path) -> None:
    """Rows of roll-ups that fit the schema are adopted with the others."""
    create(name, **FOREIGN)
    schema = parse_schema(ROLLUPS)
    write(name, rows_of(schema))
    result = run("adopt", name, "--schema", in_file(tmp_path, ROLLUPS))
    assert result.exit_code == 0, result.output
    assert {"checked all 2 rows of roll-ups", "checked all 2 rows of their parts"} <= set(lines(result))
    assert "checked all 3 rows of their sensors" in lines(result)
    adopted = read_schema(name)
    assert adopted is not None
    assert (adopted.rollups, adopted.rollup_shards) == (schema.rollups, 256)


def test_adopt_a_table_whose_roll_ups_are_to_come(name: TableName, tmp_path: Path) -> None:
    """Roll-ups may be declared for aggregates that do not tell their sensors' groups yet: a repair adds both."""
    create(name, **FOREIGN)
    write(name, [row for row in rows_of(parse_schema("")) if not row.key.startswith(b"rollup")])
    result = run("adopt", name, "--schema", in_file(tmp_path, ROLLUPS))
    assert result.exit_code == 0, result.output
    assert "the table has no rows of roll-ups: 'tidetable repair --rollups' creates them" in lines(result)
    without = "3 aggregate rows of those do not tell their sensors' groups: 'tidetable repair --rollups' adds them"
    assert without in lines(result)


def test_adopt_rows_that_tell_another_group(name: TableName, tmp_path: Path) -> None:
    """An aggregate row that tells another group than its raw rows does not fit."""
    create(name, **FOREIGN)
    rows = rows_of(parse_schema(ROLLUPS))
    moved = [row._replace(mutations=row.mutations.replace(b"north", b"south")) for row in rows]
    write(name, [new if new.key.startswith(b"agg#hourly#s1#") else old for old, new in zip(rows, moved, strict=True)])
    result = run("adopt", name, "--schema", in_file(tmp_path, ROLLUPS))
    assert result.exit_code == 1
    assert "windows that do not fit: 1" in result.stdout
    assert 'member is {"site":"south"} at 2026-02-17T12:00:00Z, but {"site":"north"} at ' in result.stdout


@pytest.mark.parametrize(
    ("declared", "reported"),
    [
        (
            ROLLUPS + "shards = 16",
            "it has sensor s0, which is none of this row's with 16 shards; declare [rollups] shards",
        ),
        (ROLLUPS.replace("fleet", "all"), "the schema has no roll-up fleet of 1h"),
        ("[rollups]", "the schema has no roll-up of such windows"),
        (
            '[tiers]\n1h = "stats"\n1d = "days"\n[rollups]\nsite = { by = "metadata.site", tiers = ["1d"] }',
            "such windows",
        ),
    ],
)
def test_rows_of_other_roll_ups(name: TableName, tmp_path: Path, declared: str, reported: str) -> None:
    """Rows that the schema's roll-ups do not read, or would read as something else, are no fit."""
    create(name, **FOREIGN, days="never")
    write(name, rows_of(parse_schema(ROLLUPS)))
    result = run("adopt", name, "--schema", in_file(tmp_path, declared))
    assert result.exit_code == 1
    assert reported in result.stdout
    assert read_schema(name) is None
