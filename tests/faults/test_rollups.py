"""Roll-ups are the merges of their sensors' rows, whatever happens to the process."""

import time

import pytest

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.toml import parse_schema
from tests.job.running import running_job
from tests.model.judge import Judge
from tests.support.aggregate_values import numbers_of
from tests.support.merged_rollups import differences, expected_rollups, found_rollups, member_in
from tests.support.waiting import eventually

HOUR_US = 3_600_000_000
SCHEMA = """
[tiers]
1h = "hours"
1d = "days"

[rollups]
site = { by = "metadata.site" }
fleet = { by = [], tiers = ["1d"] }
"""


def moving(events):
    """Returns events of three sensors, which move from site to site every 20 events."""
    start_us = (time.time_ns() // 1000 // (24 * HOUR_US) - 2) * 24 * HOUR_US
    sites = [{"site": f"site {(i + i % 3) // 20 % 2}"} for i in range(events)]
    times_us = range(start_us, start_us + events * 61_000_001, 61_000_001)
    return [sensor_event(f"s{i % 3}", times_us[i], {"t": i / 3, "u": i}, sites[i]) for i in range(events)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("writer", ["connector", "bulk"])
def test_rollups_of_drained_and_killed_jobs(resources, tmp_path, writer):
    """A drain in mid-hour, kill -9, and redelivery: groups have all their sensors, and nothing twice."""
    schema = parse_schema(SCHEMA)
    name, events = resources.table_of(schema), moving(180)
    flags = resources.flags(bigtable_table=name.table, bigtable_writer=writer)
    with RowReader.open(name) as reader:

        def wrong(counted):
            """Returns what differs, once so many events are counted; None before."""
            rows = aggregate_rows(resources, name)
            for tier in schema.tiers:
                of_tier = [row["reading_count"] for (text, *_), row in rows.items() if text == tier.window.text]
                if sum(of_tier) != counted:
                    return None
            expected = expected_rollups(schema, rows, lambda *of: member_in(schema, reader.read_selection, *of))
            return differences(found_rollups(schema, reader.read_selection), expected)

        for number, (published, counted, ends) in enumerate(
            [
                (events[:70], 70, "drained"),
                (events[70:120], 120, "killed"),
                ([], 120, "drained"),
                (events[60:], 180, "drained"),
            ]
        ):
            resources.publish([message_of(published[i : i + 10]) for i in range(0, len(published), 10)])
            with running_job(flags, tmp_path / f"{number}.log") as job:
                if ends == "killed":
                    eventually(lambda: len(aggregate_rows(resources, name)) > 3)
                    job.process.kill()
                else:
                    eventually(lambda counted=counted: wrong(counted) == [])
                    assert job.stop() == 0
        assert wrong(180) == []


def aggregate_rows(resources, name):
    """Returns the columns of each aggregate row, by window length, sensor and start."""
    return {
        Judge.window_of(key.encode()): numbers_of(
            {column.partition(":")[2].encode(): value.encode() for column, value in row.items()}
        )
        for key, row in resources.rows(name).items()
        if key.startswith("agg#")
    }
