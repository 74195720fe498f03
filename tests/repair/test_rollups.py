"""What ``tidetable repair`` does with the rows of roll-ups."""

import uuid

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rows.aggregate_rows import (
    aggregate_key,
    aggregate_row,
    parse_window_stats,
)
from pipeline.core.rows.rollup_rows import FAMILY, MEMBERS, PARTS, ROLLUP
from pipeline.core.rows.rows import Row
from pipeline.core.schema.toml import parse_schema
from tests.repair.tables import (
    HOUR,
    MINUTE,
    TWO_DAYS,
    T,
    aggregates,
    delete_rows,
    raw_rows,
    repaired,
    rows_of,
    run,
    table_of,
    write,
)
from tests.support.wrong_rollups import wrong_rollups

TIERS = "tiers = { 1h = 'hours', 1d = 'days' }\nmetrics = { raw = ['*'] }\n"
ROLLUPS = """
[rollups]
site = { by = "metadata.site", metrics = ["t"] }
model = { by = ["metadata.site", "metadata.model"], tiers = ["1d"] }
fleet = { by = [] }
shards = 4
"""
ALL = ("--rollups", *TWO_DAYS)


def events():
    """Ten sensors at two sites, one of which moves in the second hour; an event every three hours."""
    return [
        Event(
            f"sensor-{number}",
            T + hour * HOUR + number * MINUTE,
            {"t": 20.1 + hour / 7, "wind": 0.1 * number},
            {"site": "north" if number % 2 or (number == 4 and hour >= 12) else "süd", "model": f"m{number % 3}"},
        )
        for number in range(10)
        for hour in range(0, 48, 3)
    ]


@pytest.fixture
def rolled_up(bigtable):
    """A table whose aggregates and roll-ups are right."""
    name, schema = table_of(TIERS + ROLLUPS)
    write(name, raw_rows(schema, events()))
    repaired(name, *TWO_DAYS)
    assert wrong_rollups(name, schema) == []
    return name, schema


def test_rewritten_windows_are_rolled_up(rolled_up):
    """Roll-ups follow the aggregates that a repair writes or deletes, and sensors that move. The work list is left
    as it was."""
    name, schema = rolled_up
    moved = Event("sensor-1", T + 23 * HOUR, {"t": 1.0}, {"site": "süd", "model": "m9"})
    write(name, raw_rows(schema, [moved]))
    gone = [event for event in events() if event.sensor_id == "sensor-2"]
    delete_rows(name, [row.key for row in raw_rows(schema, gone)])
    _, sums = repaired(name, *TWO_DAYS)
    assert sums["rewritten"] == 2 + 18
    assert wrong_rollups(name, schema) == []
    assert not any(key.startswith(b"repair#") for key in rows_of(name))


def test_listed_windows_are_rolled_up(rolled_up):
    """Whoever lists a window leaves its roll-ups to the repair, which also finds them if the aggregate is right."""
    name, schema = rolled_up
    wrong = aggregate_row(schema.tiers[0].window, "new", T, parse_of(name, schema, "sensor-1", T), "hours")
    write(
        name, [wrong, *raw_rows(schema, [Event("new", T, {"t": 20.1, "wind": 0.1}, {"site": "north", "model": "m1"})])]
    )
    assert wrong_rollups(name, schema)
    write(name, [work_row(schema.tiers[0], "new", T)])
    repaired(name, "--listed")
    assert wrong_rollups(name, schema) == []


def parse_of(name, schema, sensor_id, start_us):
    tier = schema.tiers[0]
    key = aggregate_key(tier.window, sensor_id, start_us)
    return parse_window_stats(tier.window, Row(key, list(rows_of(name)[key])))[1]


def test_a_repair_that_is_stopped(rolled_up, monkeypatch):
    """It was stopped after it had rewritten aggregate rows: the next one finds them right, and settles the roll-ups."""
    name, schema = rolled_up
    write(name, raw_rows(schema, [Event("sensor-1", T + 23 * HOUR, {"t": 1.0}, {"site": "süd", "model": "m9"})]))
    with monkeypatch.context() as patched:
        patched.setattr(RollupSettling, "parts", lambda *_, **__: (_ for _ in ()).throw(ServerError("stopped")))
        assert run(name, *TWO_DAYS).exit_code == 1
    assert wrong_rollups(name, schema)
    findings, sums = repaired(name, *TWO_DAYS)
    assert (findings, sums["work_list"]) == ([], {"settled": 2, "left": 0})
    assert wrong_rollups(name, schema) == []


def test_an_audit_of_roll_ups(rolled_up):
    """An audit finds every kind of wrong row and writes nothing; a repair mends them, and a second one finds none."""
    name, schema = rolled_up
    right = rows_of(name)
    findings, sums = repaired(name, *ALL)
    assert findings == []
    assert sums["rollups"] == {"checked": 3 * 16 + 2 * (2 + 5 + 1), "wrong": 0, "written": 0}
    assert sums["contributions"] == {"wrong": 0}
    assert rows_of(name) == right

    of = {
        kind: sorted(key for key in right if key.startswith(f"{kind}#".encode())) for kind in (ROLLUP, PARTS, MEMBERS)
    }
    site = next(key for key in of[ROLLUP] if b"#hourly#site#north#2026-02-17T00" in key)
    fleet = next(key for key in of[ROLLUP] if b"#daily#fleet#all#2026-02-18" in key)
    with Rewriter.open(name) as rewriter:
        rewriter.delete_column([site], FAMILY, b"sum_t")
        rewriter.delete_rows([fleet, next(key for key in of[PARTS] if b"#hourly#fleet#all#2026-02-17T03" in key)])
        members = next(key for key in of[MEMBERS] if b"#hourly#" in key and key.endswith(b"2026-02-17T06"))
        rewriter.delete_column([members], FAMILY, right[members][1].qualifier)
    ghost = parse_of(name, schema, "sensor-1", T)
    write(name, [aggregate_row(schema.tiers[0].window, "ghost", T + 5 * HOUR, ghost, "hours")])
    before = rows_of(name)
    findings, sums = repaired(name, *ALL, "--dry-run")
    problems = {(each["rollup"], each["value"], each["window"], each["start"]): each["problem"] for each in findings}
    assert problems["site", "north", "1h", "2026-02-17T00:00:00Z"] == "differs"
    assert problems["fleet", "all", "1d", "2026-02-18T00:00:00Z"] == "no row"
    assert problems["fleet", "all", "1h", "2026-02-17T03:00:00Z"] == "parts differ"
    assert problems["fleet", "all", "1h", "2026-02-17T05:00:00Z"] == "no row"
    assert problems["site", "north", "1h", "2026-02-17T05:00:00Z"] == "no row"
    assert len(problems) == sums["rollups"]["wrong"] == 5
    assert sums["contributions"]["wrong"] == 2
    assert rows_of(name) == before
    result = run(name, *ALL, "--dry-run")
    assert result.exit_code == 1
    assert "site north 1h 2026-02-17T00:00:00Z differs: sum_t nothing -> " in result.stdout
    assert "5 wrong, nothing written\n" in result.stdout

    _, sums = repaired(name, *ALL)
    assert (sums["rollups"]["wrong"], sums["rollups"]["written"]) == (5, 4)
    assert wrong_rollups(name, schema) == []
    assert repaired(name, *ALL)[1]["rollups"]["wrong"] == 0
    delete_rows(name, [aggregate_key(schema.tiers[0].window, "ghost", T + 5 * HOUR)])
    findings, _ = repaired(name, *ALL)
    assert {each["problem"] for each in findings} == {"no sensors"}
    assert wrong_rollups(name, schema) == []


def test_a_roll_up_of_a_table_with_data(bigtable, tmp_path):
    """The past of a roll-up that is added is computed: first the groups of aggregate rows, as far as raw rows tell."""
    name, schema = table_of(TIERS)
    write(name, raw_rows(schema, events()))
    repaired(name, *TWO_DAYS)
    path = tmp_path / "schema.toml"
    never = "\n[policies]\n" + "\n".join(f'{family} = "never"' for family in (*schema.families, "rollup"))
    path.write_text(TIERS + ROLLUPS + never)
    which = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    applied = CliRunner().invoke(main, ["table", "apply", *which, "--schema", str(path)])
    assert applied.exit_code == 0, applied.output
    schema = parse_schema(TIERS + ROLLUPS)
    result = run(name, *ALL, "--dry-run")
    assert (result.exit_code, "180 aggregate rows without the groups that" in result.stdout) == (1, True)
    findings, sums = repaired(name, *ALL)
    assert sums["aggregates"] == {"recomputed": 180, "to_recompute": 0, "without_groups": 0}
    assert {each["problem"] for each in findings} == {"no row"}
    assert wrong_rollups(name, schema) == []
    assert len(findings) == sums["rollups"]["written"]


def test_what_raw_rows_no_longer_tell(bigtable):
    """Without raw rows, aggregate rows without the groups belong to roll-ups of all sensors alone, and are counted."""
    schema = parse_schema(TIERS + ROLLUPS)
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    assert tables.create(name, schema)
    write(name, aggregates(schema, events()))
    findings, sums = repaired(name, *ALL)
    assert sums["aggregates"] == {"recomputed": 0, "to_recompute": 0, "without_groups": 180}
    assert {each["rollup"] for each in findings} == {"fleet"}
    assert sums["rollups"] == {"checked": 18, "wrong": 18, "written": 18}
    assert wrong_rollups(name, schema) == []
    shown = run(name, *ALL).stdout.splitlines()
    assert shown[0] == "18 rows of roll-ups checked: 18 right, 0 wrong, 0 written"
    assert shown[1].startswith("180 aggregate rows without the groups, and Bigtable may have collected their raw rows:")


def test_windows_that_are_left_out(bigtable):
    """Windows that a job may still write are skipped, and those whose rows are collected."""
    schema = parse_schema(TIERS + ROLLUPS + "\n[policies]\nhours = 'maxage=30d'\n")
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    assert tables.create(name, schema)
    _, sums = repaired(name, "--rollups", "--from", "-40d", "--to", "now")
    skipped = [each["reason"] for each in sums["skipped"] if each["window"] == "1h"]
    assert skipped == ["may be collected", "still open"]
    result = run(name, "--rollups", "--from", "-2h", "--to", "now", "--dry-run")
    assert (result.exit_code, result.stderr) == (1, "nothing was checked: all windows of the range were skipped\n")
    assert "\nskipped, for each group: " in result.stdout
