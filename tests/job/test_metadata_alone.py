"""Events of metadata alone in a whole table: written by jobs, restarted, backfilled and repaired, and read."""

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner
from google.protobuf.json_format import MessageToDict

from pipeline.cli.root import main
from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.answers.record_json import latest_json
from pipeline.core.events.message import sensor_event
from pipeline.core.notation.times import to_datetime
from tests.repair.tables import delete_rows, repaired, rows_of, table_of
from tests.support.lasting import lasting
from tests.support.streams import HOUR, MINUTE, NOON, Script, event_at

DAY = to_datetime(NOON * 1_000_000).replace(hour=0), to_datetime((NOON + 24 * HOUR) * 1_000_000)
TIERS = "metadata_alone = true\nlatest = 'now'\ntiers = { 1h = 'hours', 1d = 'days' }\n"


def status_at(seconds, status, sensor_id="a"):
    return sensor_event(sensor_id, round((NOON + seconds) * 1_000_000), {}, {"status": status})


EVENTS = [
    event_at(0, 2.0),
    status_at(MINUTE, "warming up"),
    event_at(MINUTE, 3.0),  # the same event
    status_at(HOUR + MINUTE, "fault"),
    event_at(30 * MINUTE, 4.0),
    status_at(2 * MINUTE, "ok", "b"),
]


@pytest.fixture(params=["wide", "bucket_serialized"])
def table(request, bigtable):
    key = "key = '{sensor_id}#{bucket:1h}'\n" if "bucket" in request.param else ""
    return table_of(f"layout = '{request.param}'\n{key}{TIERS}")


def run_job(table, events, **more):
    name, schema = table
    script = Script().watermark(0).arrive(*events)
    script.watermark(30 * HOUR).run(
        schemas={name.table: lasting(schema)},
        written=True,
        bigtable_project=name.project,
        bigtable_instance=name.instance,
        **more,
    )


def written_rows(name):
    """Returns all rows except those of the work list; of each cell the newest version, as Bigtable keeps it."""
    rows = {key: cells for key, cells in rows_of(name).items() if not key.startswith(b"repair#")}
    return {key: sorted({cell[:2]: cell for cell in sorted(cells)}.values()) for key, cells in rows.items()}


def test_the_whole_path(table, tmp_path):
    """A job keeps them, no window counts them, and a restart, a backfill and a repair write the very same rows."""
    name, _ = table
    run_job(table, [*EVENTS, sensor_event("c", NOON * 1_000_000, {}, {})], dead_letters=["NO_READINGS"])
    written = written_rows(name)
    with SensorTable.open(name.project, name.instance, name.table) as reader:
        hours = [(each.start_us // 1_000_000 - NOON, each.reading_count) for each in reader.aggregates("a", *DAY)]
        assert hours == [(0, 3)]
        assert not list(reader.aggregates("b", *DAY))
        fresh = reader.aggregates("a", *DAY, fresh=True, open_for=timedelta(days=9999))
        assert list(fresh) == list(reader.aggregates("a", *DAY))
        read = [(record.readings, record.metadata) for record in reader.events("a", *DAY)]
        assert read == [
            ({}, {"status": "fault"}),
            ({"t": 4.0}, {}),
            ({"t": 3.0}, {"status": "warming up"}),
            ({"t": 2.0}, {}),
        ]
        points = reader.points("a", "t", *DAY)
        assert [point.value for point in points.points] == [2.0, 3.0, 4.0]
        first, second = map(latest_json, reader.latest_readings())
        assert (first["readings"], first["metadata"]) == ({"t": 4.0}, {"status": "fault"})
        assert first["event_time"] == first["metadata_times"]["status"] > first["times"]["t"]
        assert (second["readings"], second["metadata"]) == ({}, {"status": "ok"})
        assert [each.sensor_id for each in reader.latest_readings(metrics=["t"])] == ["a"]

    run_job(table, EVENTS, began=40 * HOUR)
    assert written_rows(name) == written

    file = tmp_path / "events.ndjson"
    file.write_text("\n".join(json.dumps({"readings": {}} | MessageToDict(each)) for each in EVENTS))
    where = ["--project", name.project, "--instance", name.instance, "--table", name.table]
    assert CliRunner().invoke(main, ["backfill", str(file), *where]).exit_code == 0
    assert written_rows(name) == written

    delete_rows(name, [key for key in rows_of(name) if key.startswith((b"latest#", b"agg#"))])
    repaired(name, "--from", "2026-02-17", "--to", "2026-02-18")
    assert written_rows(name) == written
