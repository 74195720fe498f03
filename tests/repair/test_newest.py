"""Rows of newest readings are right after a repair of the windows around them."""

import pytest

from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.completion.newest_audit import NewestAudit, WrongCell
from pipeline.core.completion.work_list import work_row
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.newest_row import NewestReadings, latest_key
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.retention import Retention
from pipeline.core.statistics.parts import At
from tests.repair.tables import (
    BOTH_TIERS,
    DAY,
    HOUR,
    MINUTE,
    SCHEMAS,
    SECOND,
    TWO_DAYS,
    T,
    delete_rows,
    raw_rows,
    repaired,
    rows_of,
    run,
    table_of,
    write,
)
from tests.support.exhaustive import cases
from tests.support.rows import decoded

LATEST = 'latest = "latest"\n' + BOTH_TIERS
LAST = T + 40 * HOUR
GIVEN = [
    Event("a", T - 30 * DAY, {"rare": 7.0}, {"location": "l-a"}),
    Event("a", T + HOUR, {"t": 20.0, "wind": 1.5}, {"location": "l-a"}),
    Event("a", LAST - HOUR, {"t": 21.0}, {"location": "l-a"}),
    Event("a", LAST, {"t": 4000.0, "rare": 8.0}, {"location": "l-a"}),
    Event("b", LAST + 5 * SECOND, {"t": 1.0}, {"location": "l-b"}),
]
SPIKE = GIVEN[3]
ROW_AN_EVENT = [kind for kind in SCHEMAS if not kind.startswith("bucket")]
ONE_HOUR = "--from", format_time(LAST), "--to", format_time(LAST + HOUR)
EVERYTHING = "--from", "2026-01-10", "--to", "2026-02-20"
WITHOUT = {
    "a": {"rare": At(T - 30 * DAY, 7.0), "t": At(LAST - HOUR, 21.0), "wind": At(T + HOUR, 1.5)},
    "b": {"t": At(LAST + 5 * SECOND, 1.0)},
}


def newest(name):
    with SensorTable.open(name.project, name.instance, name.table) as table:
        return {each.sensor_id: each.readings for each in table.latest_readings()}


def write_newest(name, *given):
    """Writes the newest readings of events, as a job does."""
    gathered = NewestReadings()
    for event in given:
        gathered.add(event.sensor_id, event.event_time_us, event.readings.items())
    write(name, [
        Row(latest_key(sensor), [Cell("latest", column.encode(), at_us, value) for column, at_us, value in cells])
        for sensor, cells in gathered.cells()
    ])  # fmt: skip


def spiked(text=LATEST):
    """Returns a table whose raw row of a spike, the newest of its sensor, was deleted."""
    name, schema = table_of(text)
    write(name, raw_rows(schema, GIVEN))
    repaired(name, *EVERYTHING)  # writes the newest readings: a job that was killed may have lost them
    delete_rows(name, [row.key for row in schema.rows(SPIKE)])
    return name, schema


@pytest.mark.parametrize("kind", cases(ROW_AN_EVENT, ["wide", "wide time first", "wide by location"]))
def test_a_newest_reading_that_was_deleted(bigtable, kind):
    """A repair of its hour leaves the newest reading of each metric that the table still has, however long ago it
    came. The second run changes nothing."""
    layout, _, more = kind.partition(" ")
    values = "values = 'float64'\n" if more == "float64" else ""
    name, _ = spiked(f"key = '{SCHEMAS[kind]}'\nlayout = '{layout}'\n{values}{LATEST}")
    assert newest(name)["a"]["t"].value == 4000
    before = rows_of(name)
    assert repaired(name, *ONE_HOUR, "--dry-run")[1]["newest"] == {"differ": 1, "rewritten": 0}
    assert rows_of(name) == before
    assert "\n1 row of newest readings rewritten\n" in run(name, *ONE_HOUR).stdout
    assert newest(name) == WITHOUT
    after = rows_of(name)
    _, sums = repaired(name, *ONE_HOUR)
    assert (sums["wrong"], sums["newest"]) == (0, {"differ": 0, "rewritten": 0})
    assert rows_of(name) == after


def test_a_row_that_an_earlier_repair_left(bigtable):
    """A row of newest readings is put right although the windows are: it is audited by itself, also by a dry run."""
    name, _ = spiked()
    repaired(name, *ONE_HOUR)
    write_newest(name, *GIVEN)
    result = run(name, *ONE_HOUR, "--dry-run")
    assert (result.exit_code, "\n1 row of newest readings would be rewritten\n" in result.stdout) == (1, True)
    repaired(name, *ONE_HOUR)
    assert newest(name) == WITHOUT


def test_readings_outside_the_range(bigtable):
    """They count as right: nothing tells whether their raw rows exist."""
    name, _ = spiked()
    before = newest(name)
    repaired(name, *TWO_DAYS[:2], "--to", format_time(LAST))
    assert newest(name) == before


def test_a_sensor_without_raw_rows(bigtable):
    """Nothing is left of its row."""
    name, schema = spiked()
    delete_rows(name, [row.key for event in GIVEN for row in schema.rows(event)])
    repaired(name, *EVERYTHING)
    assert newest(name) == {}
    assert not any(key.startswith(b"latest#") for key in rows_of(name))


def test_a_value_that_another_program_wrote(bigtable):
    """A cell at the time of a raw reading has its value afterwards, whatever it was."""
    name, schema = table_of(LATEST)
    write(name, raw_rows(schema, GIVEN))
    repaired(name, *EVERYTHING)
    right = newest(name)
    write(name, [Row(latest_key("a"), [Cell("latest", b"t", LAST, b"junk")])])
    repaired(name, *ONE_HOUR)
    assert newest(name) == right


def test_a_job_that_writes_meanwhile(bigtable, monkeypatch):
    """What a job writes beside a repair stays: newer readings, and those between what is deleted and what was left."""
    name, schema = spiked()
    original = NewestAudit.row

    def overtaken(self, sensor_id, wrong):
        row = original(self, sensor_id, wrong)
        late = [Event("a", LAST - MINUTE, {"t": 22.0}, {}), Event("a", LAST + 2 * HOUR, {"wind": 9.0, "rare": 5.0}, {})]
        write(name, raw_rows(schema, late))
        for event in late:
            write_newest(name, event)
        return row

    monkeypatch.setattr(NewestAudit, "row", overtaken)
    repaired(name, *ONE_HOUR)
    later = At(LAST + 2 * HOUR, 9.0), At(LAST + 2 * HOUR, 5.0)
    assert newest(name)["a"] == {"t": At(LAST - MINUTE, 22.0), "wind": later[0], "rare": later[1]}


@pytest.mark.parametrize("kind", ["wide", "wide by location"])
def test_a_late_reading_that_a_job_writes_meanwhile(bigtable, kind):
    """It is right, although the repair has read raw rows before it, and its window has no aggregate row yet."""
    name, schema = table_of(f"key = '{SCHEMAS[kind]}'\n{LATEST}")
    write(name, raw_rows(schema, GIVEN))
    repaired(name, *EVERYTHING)
    late = Event("a", LAST + 2 * HOUR, {"t": 22.0}, {"location": "l-a"})
    write(name, raw_rows(schema, [late]))
    with RowReader.open(name) as reader:
        audit = NewestAudit(schema, Retention.unknown(schema), reader.read_selection, [], LAST + DAY)
        row = audit.row("a", [WrongCell(b"t", None, late.event_time_us)])
    assert decoded(row).cells[-1] == Cell("latest", b"t", late.event_time_us, b"22")  # after a deletion


def test_foreign_raw_rows(bigtable):
    """If a row that may have the newest reading can't be read, the newest readings stay as they are."""
    name, schema = spiked()
    (row,) = schema.rows(SPIKE)
    write(name, [Row(row.key, [Cell("raw", b"t", LAST, b"?"), Cell("raw", b"rare", LAST, b"?")])])
    before = newest(name)
    run(name, *ONE_HOUR)
    assert newest(name) == before


def test_the_work_list(bigtable):
    """A repair of listed windows puts the newest readings of their sensors right."""
    name, schema = spiked()
    write(name, [work_row(schema.tiers[0], "a", LAST)])
    repaired(name, "--listed")
    assert newest(name) == WITHOUT
