"""Backfills on one machine: several files and processes, and what an interruption leaves."""

import json
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import google.cloud.bigtable
import pytest
from click.testing import CliRunner, Result
from grpc import StatusCode

from pipeline.backfill import here, run
from pipeline.backfill.request import Backfill, Outcome
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.formats.values import EventMaker, FileColumns
from pipeline.job.settings import Target
from tests.faults.bigtable_proxy import (
    BigtableProxy,
    MutationsFault,
    ReadAction,
    ReadFault,
    breaking,
    first,
    refusing,
    refusing_rows,
    slow,
)
from tests.support.lasting import lasting
from tests.support.tables import created

HEADER = "sensor_id,event_time,t,site\n"
SCHEMA = "tiers = { 1h = 'hours', 1d = 'days' }\n[rollups.sites]\nby = 'metadata.site'\n"


def schema() -> TableSchema:
    return lasting(parse_schema(SCHEMA))


def files(folder: Path, count: int = 4) -> list[Path]:
    """Files of two sensors each, with readings every ten minutes of a day; the last record of each is refused."""
    paths = [folder / f"{number}.csv" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text(
            HEADER
            + "".join(
                f"s{sensor},2024-05-01T{hour:02}:{minute}0:00Z,{number + hour / 8},site{sensor % 3}\n"
                for sensor in (number, number + 1)
                for hour in range(number % 2, 24, 2)
                for minute in range(6)
            )
            + f"s{number},soon,1,a\n"
        )
    return paths


def backfill(table: TableName, *arguments: object) -> Result:
    where = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    return CliRunner().invoke(main, ["backfill", *map(str, arguments), *where, "--allowed-lateness=0s"])


def cells(table: TableName) -> dict[bytes, dict[tuple[str, bytes, int], bytes]]:
    """Returns every cell except the schema's, with the newest version only."""
    opened = google.cloud.bigtable.Client(project=table.project).instance(table.instance).table(table.table)
    return {
        row.row_key: {
            (family, qualifier, some[0].timestamp_micros): some[0].value
            for family, columns in row.cells.items()
            for qualifier, some in columns.items()
        }
        for row in opened.read_rows()
        if not row.row_key.startswith(b"schema#")
    }


def loaded_by_beam(backfill: Backfill) -> Outcome:
    """Writes the rows by the steps of the job on Dataflow."""
    return run._run(backfill, partial(run._load, backfill=backfill))


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each file a round of its own."""
    monkeypatch.setattr(here, "_ROUND_BYTES", 1)


def plan_of(name: TableName, paths: list[Path]) -> Backfill:
    return Backfill(
        {str(path): path.stat().st_size for path in paths}, EventMaker(FileColumns()), Target(name, schema()),
        Expiry.of(schema(), tables.describe(name)), timedelta(hours=1), timedelta(0), timedelta(minutes=1), None, str,
        ["--runner=DirectRunner", f"--temp_location={paths[0].parent}"],
    )  # fmt: skip


def test_every_way_finds_the_same_in_files(bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run in one process, in two, a few events at a time, and as a job."""
    paths = files(tmp_path, 3)
    paths.append(tmp_path / "again.csv")
    paths[-1].write_text(paths[0].read_text().replace(":00Z,0.0,", ":00Z,7.5,"))
    plan = plan_of(created(schema()), paths)
    job = run._run(plan, partial(run._count, backfill=plan, surveys=True))
    assert (job.survey.sensors, job.repeated.readings, job.repeated.lost, len(job.refused)) == (4, 132, 12, 4)
    for processes, events in (1, here._MOST_EVENTS), (2, here._MOST_EVENTS), (1, 7):
        monkeypatch.setattr(here, "processes_for", lambda _files, count=processes: count)
        monkeypatch.setattr(here, "_MOST_EVENTS", events)
        assert replace(here.count(plan, surveys=True), processes=job.processes) == job


def test_every_way_writes_the_same_table(bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, two processes, one round a file, and the job: the same cells, counts and refused records."""
    paths = files(tmp_path)
    name = created(schema())
    plan = plan_of(name, paths)
    job, expected = loaded_by_beam(plan), cells(name)
    assert len(expected) > 400
    for processes, round_bytes in (1, here._ROUND_BYTES), (1, 1), (2, here._ROUND_BYTES):
        monkeypatch.setattr(here, "processes_for", lambda _files, count=processes: count)
        monkeypatch.setattr(here, "_ROUND_BYTES", round_bytes)
        table = created(schema())
        result = backfill(table, *paths, "--format=json")
        found = json.loads(result.stdout)
        assert (result.exit_code, found["records"], found["raw_rows"]) == (1, 4 * 145, 4 * 144)
        assert found["refused_by_file"] == job.of_files == {str(path): 1 for path in paths}
        assert (found["distinct_events"], found["repeated_readings"]) == (4 * 144, 0)
        assert cells(table) == expected


def test_the_summary_names_files_with_refused_records(bigtable: str, tmp_path: Path) -> None:
    """A line a file; and one that can't be read does not end the others."""
    paths = files(tmp_path, 2)
    (tmp_path / "0.csv.gz").write_bytes(b"not gzip")
    (tmp_path / "notes.log").write_text("x")
    table = created(schema())
    result = backfill(table, tmp_path / "*")
    assert result.exit_code == 1
    assert f"\n  {paths[0]}: 1 record\n  {paths[1]}: 1 record\n" in result.stdout
    assert " s in 1 process on this machine, " in result.stdout
    assert f"{tmp_path}/notes.log: its name ends in none of .csv, " in result.stderr
    assert result.stderr.endswith("Error: 2 files could not be read to the end\n")
    assert len([key for key in cells(table) if key.startswith(b"s")]) == 2 * 144


def test_a_file_that_vanishes_ends_no_other(bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported when its turn comes."""
    paths, load = files(tmp_path, 3), here._BackfillSteps.load

    def loaded(steps: here._BackfillSteps, number: int, file: tuple[str, int]) -> Outcome:
        paths[1].unlink(missing_ok=True)
        return load(steps, number, file)

    monkeypatch.setattr(here._BackfillSteps, "load", loaded)
    table = created(schema())
    result = backfill(table, *paths)
    assert result.exit_code == 1
    assert f"{paths[1]}: can't be opened: " in result.stderr
    assert f"3 files, {2 * 145} records, {2 * 144} events: {2 * 144} raw rows and " in result.stdout


@pytest.fixture
def interrupted(
    bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_rounds: None
) -> tuple[TableName, list[Path], list[str]]:
    """Returns a table, four files for it, two of which were written before Ctrl-C, and the files that are read."""
    table, paths, read = created(schema()), files(tmp_path), list[str]()
    load = here._BackfillSteps.load

    def loaded(steps: here._BackfillSteps, number: int, file: tuple[str, int]) -> Outcome:
        if file[0] == str(paths[2]) and len(read) == 2:
            raise KeyboardInterrupt
        read.append(file[0])
        return load(steps, number, file)

    monkeypatch.setattr(here._BackfillSteps, "load", loaded)
    result = backfill(table, *paths, "--refused", tmp_path / "refused.ndjson")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "run the same command again to go on" in result.stderr
    read.append("interrupted")
    return table, paths, read


def test_an_interrupted_backfill_goes_on(
    interrupted: tuple[TableName, list[Path], list[str]], tmp_path: Path, state_home: Path
) -> None:
    """It reads only files that are not done, and its result is that of all of them. Then it has no notes left."""
    table, paths, read = interrupted
    letters = tmp_path / "refused.ndjson"
    assert not letters.exists()
    result = backfill(table, *paths, "--refused", letters)
    assert read == [str(paths[0]), str(paths[1]), "interrupted", str(paths[2]), str(paths[3])]
    assert result.stdout.startswith(f"4 files, {4 * 145} records, {4 * 144} events: {4 * 144} raw rows and ")
    assert "of these, an earlier run that was interrupted had written 2 files\n" in result.stdout
    assert [json.loads(line)["attributes"]["file"] for line in letters.read_text().splitlines()] == list(
        map(str, paths)
    )
    assert not [*state_home.glob("tidetable/*")]
    once = created(schema())
    backfill(once, *paths)
    assert cells(table) == cells(once)


def test_what_has_changed_is_read_again(interrupted: tuple[TableName, list[Path], list[str]], tmp_path: Path) -> None:
    """A file with the same size and other content is not done."""
    table, paths, read = interrupted
    paths[0].write_text(paths[0].read_text().replace("soon", "late"))
    backfill(table, *paths, "--refused", tmp_path / "refused.ndjson")
    assert read[3:] == [str(paths[0]), str(paths[2]), str(paths[3])]


def test_the_same_backfill_twice_at_once(
    bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_home: Path
) -> None:
    """The second one is refused in one line, and writes nothing: both would note their refused records in one place."""
    table, paths, second = created(schema()), files(tmp_path, 1), list[Result]()
    load = here.load

    def twice(*arguments: Any) -> Outcome:
        monkeypatch.setattr(here, "load", load)
        second.append(backfill(table, *paths))
        return load(*arguments)

    monkeypatch.setattr(here, "load", twice)
    assert backfill(table, *paths).exit_code == 1  # by the record that is no event
    line = "Error: the same backfill is running; wait until it has ended, and run this one again\n"
    assert [(each.exit_code, each.stderr) for each in second] == [(1, line)]
    assert not [*state_home.glob("tidetable/*")]


@pytest.mark.parametrize("how", ["restart", "another table", "another time unit", "another release"])
def test_it_begins_anew(
    interrupted: tuple[TableName, list[Path], list[str]], tmp_path: Path, state_home: Path, how: str
) -> None:
    """On demand, for a table that was created anew, with other columns, and if notes have another layout."""
    table, paths, read = interrupted
    if how == "another table":
        tables.delete(table)
        tables.create(table, schema())
    if how == "another release":
        [notes] = state_home.glob("tidetable/*/done.json")
        notes.write_text(json.dumps({**json.loads(notes.read_text()), "outcome": [{}, [], [], [0, 0, 0, []], {}]}))
    options = {"restart": ["--restart"], "another time unit": ["--time-unit=s"]}.get(how, [])
    backfill(table, *paths, "--refused", tmp_path / "refused.ndjson", *options)
    assert read[3:] == list(map(str, paths))


FAULTS: dict[str, tuple[MutationsFault | None, ReadFault | None]] = {
    "slow answers": (first(20, slow(0.1)), None),
    "rows refused at first": (first(20, refusing(StatusCode.UNAVAILABLE)), None),
    "answers lost": (first(10, breaking(StatusCode.UNAVAILABLE)), None),
    "reads that break": (None, first(10, lambda _: ReadAction(StatusCode.UNAVAILABLE, messages=1))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_slow_or_refusing_table_changes_nothing(
    bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The table is that of a backfill without faults."""
    path, expected = files(tmp_path, 1)[0], created(schema())
    backfill(expected, path)
    table = created(schema())
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations, proxy.reads = FAULTS[name]
        result = backfill(table, path)
        assert proxy.delayed or proxy.refused or proxy.failed
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    assert "145 records, 144 events: 144 raw rows" in result.stdout
    assert cells(table) == cells(expected)


def test_rows_that_bigtable_refuses_are_dead_letters(
    bigtable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count in no window, and the file of refused records has their events."""
    path, table, letters = files(tmp_path, 1)[0], created(schema()), tmp_path / "refused.ndjson"
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations = first(1, refusing_rows(StatusCode.INVALID_ARGUMENT, one_in=10))
        result = backfill(table, path, "--refused", letters)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    found = cells(table)
    raw = [key for key in found if key.startswith(b"s")]
    counts = [
        int(value)
        for row in found.values()
        for (family, column, _), value in row.items()
        if (family, column) == ("hours", b"reading_count")
    ]
    assert sum(counts) == len(raw) < 144
    assert len(letters.read_text().splitlines()) > 144 - len(raw)  # with the record that is no event
    assert "ROW_REFUSED" in result.stdout
