import copy
import uuid

import pytest
from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.monitoring_infos import API_REQUEST_COUNT_URN
from google.cloud.bigtable.data.mutations import RowMutationEntry
from google.cloud.bigtable.row import DirectRow
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse
from google.rpc.status_pb2 import Status

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.notation.times import to_datetime
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import ENTRY_OVERHEAD, Cell, Row, prefix_range
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.layouts import CellSelection
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn, _EncodedEntry, _parts, _plain_responses
from tests.faults.bigtable_proxy import BigtableProxy
from tests.support.tables import unused_name

KEY = b"agg#hourly#a#2026-02-17T12"


def row_of(cells):
    return Row(KEY, [Cell("stats", b"q%d" % i, 1_771_329_600_000_000, b"1") for i in range(cells)])


def entries(row):
    return [_EncodedEntry(part) for part in _parts(row)]


def test_an_entry_is_that_of_a_direct_row():
    """The connector sends what it would have made of Google's own row, and may send it again."""
    row = row_of(3)
    direct_row = DirectRow(row.key)
    for cell in row.cells:
        direct_row.set_cell(cell.family, cell.qualifier, cell.value, to_datetime(cell.timestamp_us))
    expected = RowMutationEntry(direct_row.row_key, direct_row._get_mutations())
    (entry,) = entries(row)
    assert entry._to_pb() == MutateRowsRequest.Entry.pb(expected._to_pb())
    assert (entry.row_key, len(entry.mutations)) == (expected.row_key, len(expected.mutations))
    assert entry.is_idempotent()


def test_size_of_an_entry():
    """The size, by which the connector limits requests, is at least that of the encoded entry, and little more."""
    for cells in (1, 1000):
        (entry,) = entries(row_of(cells))
        size = MutateRowsRequest.pb()(entries=[entry._to_pb()]).ByteSize()
        assert size <= entry.size() <= size + ENTRY_OVERHEAD


def test_a_row_wider_than_bigtable_takes_at_once():
    """A row of more cells than an entry may have becomes several entries, each cell in one of them."""
    parts = entries(row_of(120_001))
    assert [len(part._to_pb().mutations) for part in parts] == [50_000, 50_000, 20_001]
    assert {part.row_key for part in parts} == {KEY}


def test_plain_responses():
    """Responses have the same fields, without the wrapper that makes each of them slow to read."""
    response = MutateRowsResponse(entries=[{"index": 3, "status": {"code": 14, "message": "away"}}])
    requests = []
    (plain,) = _plain_responses(lambda **request: requests.append(request) or [response], request="rows", timeout=1)
    assert requests == [{"request": "rows", "timeout": 1}]
    assert type(plain) is MutateRowsResponse.pb()
    assert MutateRowsResponse.wrap(plain) == response


def test_the_app_profile(bigtable, monkeypatch):
    """The connector's requests take the route of the table's app profile, also of a step that was sent to a worker."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}", "batch")
    tables.create_bare(name, {"stats": Never()})
    write_fn = copy.copy(ConnectorWriteFn(name, 300))  # pickles the state
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        for _ in range(2):
            write_fn.start_bundle()
            write_fn.process(row_of(3))
            write_fn.finish_bundle()
    assert proxy.app_profiles["MutateRows"] == {"batch"}


@pytest.mark.parametrize("then", ["start_bundle", "teardown"])
def test_a_bundle_that_fails_writes_nothing_later(bigtable, then):
    """Its rows are dropped, and the timer that would send them ends, before another bundle begins or the step ends."""
    name = unused_name()
    tables.create_bare(name, {"stats": Never()})
    write_fn = ConnectorWriteFn(name, 300)
    write_fn.start_bundle()
    write_fn.process(row_of(3))
    failed = write_fn.batcher._batcher
    getattr(write_fn, then)()
    assert failed.closed
    with RowReader.open(name) as reader:
        assert not list(reader.read_selection(RowSelection(prefix_range(b""), CellSelection(("stats",)))))


def test_counted_statuses(bigtable):
    """Each status is counted as the connector counts it; one that is missing is that of an expired deadline."""
    write_fn = ConnectorWriteFn(TableName("test-project", "instance", "counted-statuses"), 300)
    write_fn.start_bundle()
    write_fn.write_mutate_metrics([Status(code=0), Status(code=14), Status(code=0), None])
    write_fn.finish_bundle()
    infos = MetricsEnvironment.process_wide_container().to_runner_api_monitoring_infos(None).values()
    counted = {
        info.labels["STATUS"]: info.payload[0]
        for info in infos
        if info.urn == API_REQUEST_COUNT_URN and info.labels["TABLE_ID"] == "counted-statuses"
    }
    assert counted == {"ok": 2, "unavailable": 1, "deadline_exceeded": 1}
