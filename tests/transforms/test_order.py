"""Rows of the work list are written after the raw rows of their bundle, whichever sink writes them.

A repair that takes such a row off the list has therefore read every event that it was written for.
"""

import uuid

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from grpc import StatusCode

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.completion.work_list import work_row
from pipeline.core.rows.mutation_bytes import encoded
from pipeline.core.rows.rows import Cell, EncodedRows, KeyRange, Row
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows.fixed import HOURLY
from pipeline.transforms.bulk import BulkWriteRows
from pipeline.transforms.write import WriteRows
from tests.faults.bigtable_proxy import BigtableProxy, MutationsAction

T = 1_771_329_600_000_000
LISTED = EncodedRows([encoded(work_row(Tier(HOURLY, "stats"), "a", T))])
RAW = [EncodedRows([encoded(Row(b"a#%03d" % n, [Cell("raw", b"t", T, b"1")]))]) for n in range(30)]


@pytest.mark.parametrize("sink", [WriteRows, BulkWriteRows])
def test_the_work_list_comes_last(bigtable, monkeypatch, sink):
    """The order holds however often raw rows are retried, and wherever the work list row is in the bundle."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    tables.create_bare(name, {"raw": Never(), "stats": Never()})
    tried, applied, applied_before = set(), set(), []

    def refusing_once(entries):
        refused = {}
        for index, entry in enumerate(entries):
            if entry.row_key.startswith(b"repair#"):
                applied_before.append(len(applied))
            elif entry.row_key in tried:
                applied.add(entry.row_key)
            else:
                tried.add(entry.row_key)
                refused[index] = StatusCode.UNAVAILABLE
        return MutationsAction(refused)

    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations = refusing_once
        with beam.Pipeline(FnApiRunner()) as pipeline:
            rows = pipeline | beam.Create([*RAW[:10], LISTED, *RAW[10:]], reshuffle=False)
            _ = rows | sink(name)
    assert applied_before == [30]
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    with RowReader.open(name) as reader:
        assert sum(1 for _ in reader.read(KeyRange(b"", b""))) == 31


def test_nothing_is_listed_before_its_event_is_written(bigtable):
    """If raw rows can't be written, neither is the work list row: the bundle is retried with both."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    tables.create_bare(name, {"stats": Never()})
    pipeline = beam.Pipeline(FnApiRunner())
    rows = pipeline | beam.Create([LISTED, *RAW], reshuffle=False)
    _ = rows | WriteRows(name)
    with pytest.raises(Exception, match="rows could not be written"):
        pipeline.run().wait_until_finish()
    with RowReader.open(name) as reader:
        assert not list(reader.read(KeyRange(b"", b"")))
