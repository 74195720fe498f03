"""A repair on Dataflow: what it submits, and how it reads the findings."""

import json
import time
from types import SimpleNamespace

import pytest
from apache_beam.io.filesystems import FileSystems
from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult

from pipeline.core.completion.work_list import work_key, work_row
from pipeline.job.flags import BadFlag
from pipeline.repair import report, scope
from pipeline.repair.run import carry_out
from pipeline.repair.scope import Request, scope_of
from tests.repair.tables import DAY, HOURLY, T, events, raw_rows, table_of
from tests.support.bare_tables import rows_of, write
from tests.support.google_cloud import BUCKET, submitting_to_dataflow

FINDING = {"sensor_id": "a", "start": "2026-02-17T00:00:00Z", "window": "1h", "problem": "differs"}


@pytest.fixture
def dataflow(monkeypatch):
    with submitting_to_dataflow(monkeypatch) as dataflow:
        yield dataflow


@pytest.fixture
def request_of(bigtable):
    """A request for two days of a table without aggregates, with a window on its work list."""
    name, schema = table_of()
    write(name, {row.key: row.cells for row in raw_rows(schema, events())})
    write(name, {row.key: row.cells for row in [work_row(schema.tiers[0], "a", T)]})

    def request(**changes):
        between = {"start_us": T, "end_us": T + 2 * DAY, "report": f"gs://{BUCKET}/report"}
        return Request(name, **(between | changes))

    return request


def counted(name, value):
    return SimpleNamespace(key=SimpleNamespace(metric=SimpleNamespace(name=name)), committed=value)


def test_one_job(request_of, dataflow, monkeypatch):
    """All of it is one batch job, however large, and one that looks again at what the first has rewritten.

    Findings are read from its report, and the work list is settled.
    """
    job, written = request_of(), []

    def write_to_text(prefix, suffix):
        written.append(f"{prefix}-00000-of-00001{suffix}")
        return original(prefix, suffix)  # in as many files as Dataflow sees fit

    def wait(_):
        with FileSystems.create(written[-1]) as file:
            file.write(json.dumps(FINDING).encode() + b"\n")
        counters[:] = [
            counted(f"repair_windows_{name}", n)
            for name, n in zip(("checked", "wrong", "rewritten"), came_of.pop(0), strict=True)
        ]

    came_of, counters = [(54, 2, 1), (1, 0, 0)], []
    original = report.WriteToText
    monkeypatch.setattr(report, "WriteToText", write_to_text)
    monkeypatch.setattr(scope, "SLICE_BYTES", 1)
    monkeypatch.setattr(DataflowPipelineResult, "wait_until_finish", wait)
    monkeypatch.setattr(
        DataflowPipelineResult, "metrics", lambda _: SimpleNamespace(query=lambda _: {"counters": counters})
    )
    (result,) = carry_out(job, scope_of(job, dataflow.options), dataflow.options)
    assert (result.checked, result.wrong, result.rewritten, result.settled) == (54, 2, 1, 1)
    assert list(result.findings) == [FINDING]
    assert written[0].startswith(f"gs://{BUCKET}/report/repair-{time.strftime('%Y')}")
    assert dataflow.jobs[0]["type"] == 1  # JOB_TYPE_BATCH
    assert work_key(HOURLY, "a", T) not in rows_of(job.table)


def test_a_work_list_that_is_too_long(request_of, dataflow, monkeypatch):
    """A long work list does not fit in a job's graph; the error says what to do."""
    monkeypatch.setattr(scope, "MOST_LISTED", 0)
    with pytest.raises(BadFlag, match=r"the work list has 1 windows.*; pass --from and --to instead"):
        scope_of(request_of(listed=True, start_us=0), dataflow.options)
