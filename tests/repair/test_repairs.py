"""Which aggregate rows ``tidetable repair`` finds wrong, and rewrites."""

import json
from dataclasses import replace

from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.work_list import work_key, work_row
from pipeline.core.events.event import Event
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.windows import HOURLY
from pipeline.repair import run as job
from pipeline.repair import scope
from tests.repair.tables import (
    DAY,
    MINUTE,
    TWO_DAYS,
    WRONG,
    T,
    aggregates,
    assert_right,
    events,
    of,
    put,
    raw_rows,
    repaired,
    rows_of,
    run,
    spoil,
    write,
)


def test_wrong_rows_are_found_and_repaired(written, tmp_path):
    """Repair reports every kind of wrong row with stored and recomputed values, also in a file of the report's folder,
    a line of JSON each. It rewrites them for good, and they are read like any other."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, *TWO_DAYS, "--report", str(tmp_path))
    assert sorted(of(findings)) == sorted(WRONG)
    (file,) = tmp_path.iterdir()
    assert sorted(of(map(json.loads, file.read_text().splitlines()))) == sorted(of(findings))
    assert (sums["checked"], sums["wrong"], sums["rewritten"]) == (3 * 2 * 9 + 1, 5, 5)
    by_start = {(each["sensor_id"], each["start"], each["window"]): each["differences"] for each in findings}
    assert by_start["a", "2026-02-17T00:00:00Z", "1h"] == {
        name: {"stored": 2 * value, "recomputed": value}
        for name, value in [
            ("count_t", 1), ("count_wind", 1), ("reading_count", 1), ("sum_t", 20.1),
        ]
    }  # fmt: skip
    ghost = by_start["a", "2026-02-17T03:00:00Z", "1h"]
    assert set(ghost) == {f"{statistic}_ghost" for statistic in ("count", "sum", "min", "max", "avg", "stddev")}
    assert ghost["sum_ghost"] == {"stored": 1.0, "recomputed": None}
    assert_right(name, schema, events())
    after = rows_of(name)
    assert repaired(name, *TWO_DAYS)[0] == []
    assert rows_of(name) == after
    with SensorTable.open(name.project, name.instance, name.table) as table:
        days = list(table.aggregates("b", T, T + 2 * DAY, tier="1d"))
    assert [day.reading_count for day in days] == [8, 8]
    assert replace(days[0], start_us=0).metrics["wind"].min == 0.0


def test_a_fuller_row_that_a_job_writes_meanwhile(written, monkeypatch):
    """It stays: a repair whose rows count more than those that it has read deletes nothing."""
    name, schema = written
    late = Event("a", T + MINUTE, {"t": 1.0}, {})
    fuller = [row for row in aggregates(schema, [*events(), late]) if row.key == aggregate_key(HOURLY, "a", T)]
    put(name, [row for row in aggregates(schema, [late]) if row.key == fuller[0].key])
    replace_all = Rewriter.replace

    def overtaken(self, replacements):
        write(name, [*raw_rows(schema, [late]), *fuller])
        replace_all(self, replacements)

    with monkeypatch.context() as patched:
        patched.setattr(Rewriter, "replace", overtaken)
        assert of(repaired(name, *TWO_DAYS)[0])[0] == ("a", "1h", "2026-02-17T00:00:00Z", "differs")
    assert {(fuller[0].key, *cell[:2], cell.value) for cell in fuller[0].cells} <= {
        (key, *cell[:2], cell.value) for key, cells in rows_of(name).items() for cell in cells
    }
    repaired(name, *TWO_DAYS)  # the day, which the job had still to write
    assert_right(name, schema, [*events(), late])


def test_a_dry_run_writes_nothing(written):
    """A dry run finds the same, exits with code 1, and changes no cell, nor the work list."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T)])
    before = rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS, "--dry-run")
    assert sorted(of(findings)) == sorted(WRONG)
    assert (sums["wrong"], sums["behind"], sums["rewritten"]) == (5, 2, 0)
    assert sums["work_list"] == {"settled": 0, "left": 1}
    assert rows_of(name) == before


def test_only_whole_windows(written):
    """A window that extends beyond the range is skipped, since repair did not read all of its raw rows."""
    name, schema = written
    spoil(name, schema)
    findings, sums = repaired(name, "--from", "2026-02-17T00:30", "--to", "2026-02-18T23:59")
    assert [each for each in of(findings) if each[3] != "contains wrong windows"] == [WRONG[1], WRONG[2]]
    assert sums["checked"] == 3 * 15 + 1  # the hours but the first; the last has no events


def test_interrupted_and_run_again(written, monkeypatch):
    """Repaired windows stay repaired, the others stay listed, and a second run repairs the rest."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T), work_row(schema.tiers[0], "b", T + DAY)])
    monkeypatch.setattr(scope, "SLICE_BYTES", 1)  # a slice a day
    with monkeypatch.context() as patched:
        run_one, calls = job.bounded.run, []

        def failing(*arguments):
            calls.append(arguments)
            if len(calls) == 3:  # the second slice: what was rewritten of the first is looked at again
                raise KeyboardInterrupt
            return run_one(*arguments)

        patched.setattr(job.bounded, "run", failing)
        result = run(name, *TWO_DAYS)
        calls[:] = [None] * 2
        audited = run(name, *TWO_DAYS, "--dry-run")
    assert result.exit_code == audited.exit_code == 130
    assert "repaired windows stay repaired" in result.stderr
    assert "nothing was written" in audited.stderr
    assert work_key(HOURLY, "a", T) not in rows_of(name)
    assert work_key(HOURLY, "b", T + DAY) in rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS)
    assert of(findings) == [WRONG[4]]
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, events())


def test_interrupted_in_the_middle_of_a_slice(written, monkeypatch):
    """Rows written before a failure stay right; the next repair rewrites the others."""
    name, schema = written
    spoil(name, schema)
    write(name, [work_row(schema.tiers[0], "a", T)])
    with monkeypatch.context() as patched:
        replace_all = Rewriter.replace

        def failing(self, replacements):
            replacements = list(replacements)
            replace_all(self, replacements[:1])
            if len(replacements) > 1:
                raise job.ServerError("the server went away")

        patched.setattr(Rewriter, "replace", failing)
        result = run(name, *TWO_DAYS)
    assert (result.exit_code, result.stderr) == (1, "Error: the server went away\n")
    assert work_key(HOURLY, "a", T) in rows_of(name)
    findings, sums = repaired(name, *TWO_DAYS)
    assert 0 < len(findings) <= len(WRONG)
    assert sums["work_list"] == {"settled": 1, "left": 0}
    assert_right(name, schema, events())
