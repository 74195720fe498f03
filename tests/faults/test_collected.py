"""The process is killed after raw rows are written and before their panes, and raw rows are collected afterwards."""

from google.cloud.bigtable import data

from pipeline.core.events.event import validate
from pipeline.core.events.message import message_of
from pipeline.core.schema.toml import parse_schema
from tests.faults import judge
from tests.faults.feed import HOUR_US, MINUTE_US, now_us, series, tidetable
from tests.job.running import running_job
from tests.support.tables import write
from tests.support.waiting import eventually

SCHEMA = parse_schema(
    '[tiers]\n1h = "hours"\n1d = "days"\n[policies]\nraw = "maxage=2d"\nmeta = "maxage=2d"\nhours = "never"\n'
    'days = "never"\n[statistics]\ntemperature = ["count", "sum", "min", "max", "avg", "stddev", "increase"]'
)


def test_killed_between_raw_rows_and_panes(resources, tmp_path):
    """No row counts less than before, and what a row may lack is on the work list, which a repair leaves as it is."""
    resources.table = resources.table_of(SCHEMA)
    start_us = now_us() // HOUR_US * HOUR_US - 26 * HOUR_US  # of which raw rows may be gone
    hour = series("a", start_us, 30, MINUTE_US)
    first, lost, last = hour[:10], hour[10:20], [*hour[20:], *series("a", start_us + HOUR_US, 2)]

    def run(events, log):
        """Publishes events, and waits until their raw rows are written; the job's panes fire when it is stopped."""
        published = [message_of(events[number : number + 5]) for number in range(0, len(events), 5)]
        with running_job(resources.flags(early_firing="1h"), tmp_path / log) as job:
            resources.publish(published)
            eventually(lambda: resources.raw_keys() >= keys_of(events))
            assert job.stop() == 0

    run(first, "first")
    before = counts(resources)
    assert sorted(before.values()) == [10, 10]
    left = [row for event in lost for row in SCHEMA.rows(validate(event, now_us()))]
    write(resources.table, left)  # what a killed job leaves of messages that come again
    collect(resources, keys_of([*first[::3], *lost[::2]]))
    run([*lost, *last], "last")
    for _ in range(2):
        found = counts(resources)
        assert all(found[key] >= count for key, count in before.items())
        listed = judge.work_list(resources.table)
        assert any(key.replace("repair#", "agg#") in before for key in listed)
        done = tidetable("repair", resources, "--listed", "--allowed-lateness", "0s")
        assert done.returncode == 0, done.stdout + done.stderr
        assert counts(resources) == found


def keys_of(events):
    return set(map(judge.raw_key, events))


def counts(resources):
    """Returns the number of events that each aggregate row counts."""
    return {
        key: int(next(value for column, value in row.items() if column.endswith(":reading_count")))
        for key, row in resources.rows().items()
        if key.startswith("agg#")
    }


def collect(resources, keys):
    """Deletes raw rows, as garbage collection may."""
    with data.BigtableDataClient(project=resources.table.project) as client:
        table = client.get_table(resources.table.instance, resources.table.table)
        table.bulk_mutate_rows([data.RowMutationEntry(key, data.DeleteAllFromRow()) for key in keys])
