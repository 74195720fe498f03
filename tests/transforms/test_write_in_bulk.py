import threading

import apache_beam as beam
import pytest
from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metric import Lineage
from apache_beam.metrics.monitoring_infos import API_REQUEST_COUNT_URN
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, GlobalWindow
from google.cloud.bigtable_v2.types import MutateRowsRequest
from grpc import StatusCode

from pipeline.cloud.connection.bigtable_client import _shared_client
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.bulk_writer import Limits
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.rollup_rows import LEFT, Versioned, members_key, rollup_key, versioned_row
from pipeline.core.rows.rows import Cell, EncodedRows, Row, encoded
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.transforms import metrics
from pipeline.transforms.write import BulkWriteFn, BulkWriteRows
from tests.faults.bigtable_proxy import BigtableProxy, failing, first, refusing
from tests.support.tables import keys_of, unused_name

NOW_S = 1_771_329_600.0
Entry = MutateRowsRequest.Entry.pb()


@pytest.fixture
def name(bigtable):
    name = unused_name()
    tables.create_bare(name, {"raw": Never()})
    return name


def row(key, family="raw"):
    return Row(key, [Cell(family, b"q", 1_771_329_600_000_000, b"v")])


ROWS = [row(b"%03d" % i) for i in range(100)]
BAD = [row(b"%03d" % i, "nowhere") for i in range(0, 100, 9)]


def many(rows):
    """Returns rows as events are formatted: as encoded rows in one element."""
    return EncodedRows(map(encoded, rows))


def run(name, elements, check=None, windows=None, **arguments):
    """Returns the result of a pipeline that writes the rows; ``check`` gets the dead letters' contents."""
    pipeline = beam.Pipeline(FnApiRunner())
    rows = pipeline | beam.Create(elements, reshuffle=False)
    if windows:
        rows |= beam.WindowInto(windows)
    write = BulkWriteRows(name, clock=lambda: NOW_S, **arguments)
    letters = rows | "WriteRows" >> write
    if check:
        assert_that(letters, check)
    result = pipeline.run()
    result.wait_until_finish()
    return result


def test_rows_and_lists_of_rows(name):
    """Single rows and encoded rows are both written."""
    run(name, [many(ROWS[:30]), ROWS[30], ROWS[31], many(ROWS[32:]), many([])], equal_to([]))
    assert keys_of(name) == [row.key for row in ROWS]


@pytest.mark.parametrize("windows", [None, FixedWindows(60)], ids=["global", "windowed"])
def test_refused_rows_are_dead_letters(name, windows):
    """Each dead letter contains reason and entry, and is in the global window. All other rows are written."""

    def check(letters):
        assert sorted(letter.attributes["row_key"].encode() for letter in letters) == [row.key for row in BAD]
        letter = letters[0]
        entry = Entry.FromString(letter.data)
        assert (entry.row_key.decode(), len(entry.mutations)) == (letter.attributes["row_key"], 1)
        assert letter.attributes["dead_letter_reason"] == "ROW_REFUSED"
        assert letter.attributes["dead_letter_step"] == "WriteRows"
        assert letter.attributes["dead_letter_time"] == "2026-02-17T12:00:00Z"
        assert f"table {name}: row " in letter.attributes["dead_letter_detail"]

    run(name, [many([*ROWS, *BAD])], check, windows, limits=Limits(mutations=10))
    assert keys_of(name) == [row.key for row in ROWS]


def test_windows_of_refused_rows_are_listed(bigtable):
    """The first shortest window of each refused aggregate row is listed, and those of a part of roll-ups."""
    schema = parse_schema("tiers = { 15m = 'quarters', 1d = 'days' }")
    name = unused_name()
    (shortest, longest), at_us = schema.tiers, parse_time("2026-02-17T10:20:00Z")
    tables.create_bare(name, {shortest.family: Never()})
    stats = WindowStats()
    stats.add({"t": 1.0})
    bad = [
        aggregate_row(shortest.window, "a", shortest.window.start_of(at_us), stats, "nowhere"),
        aggregate_row(longest.window, "b", longest.window.start_of(at_us), stats, longest.family),
    ]
    day_us, cells = longest.window.start_of(at_us), [(b"c", Versioned(2, b"")), (LEFT, Versioned(2, b""))]
    of_rollups = [members_key(longest.window, 7, day_us), rollup_key(longest.window, "site", "north", day_us)]
    good = [row(b"%04d" % i, shortest.family) for i in range(100)]
    rows = EncodedRows([*many([*good, *bad]), *(versioned_row(key, day_us, cells) for key in of_rollups)])
    for limits in (Limits(), Limits(mutations=1)):
        run(name, [rows], schema=schema, limits=limits)
        assert [key.decode() for key in keys_of(name) if key.startswith(b"repair#")] == [
            "repair#15m#a#2026-02-17T10:15:00",
            "repair#15m#b#2026-02-17T00:00:00",
            "repair#15m#c#2026-02-17T00:00:00",
        ]


def test_dead_letters_are_in_no_window(name):
    """Rows refused at the end of a bundle are dead letters too."""
    pipeline = beam.Pipeline(FnApiRunner())
    letters = (
        pipeline
        | beam.Create([many(BAD)])
        | beam.WindowInto(FixedWindows(60))
        | BulkWriteRows(name)
        | beam.Map(lambda _, window=beam.DoFn.WindowParam: window)
    )
    assert_that(letters, equal_to([GlobalWindow()] * len(BAD)))
    pipeline.run().wait_until_finish()


def test_metrics(name, bigtable, monkeypatch):
    """Our own metrics are reported, and the connector's: lineage and service calls."""
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations = first(1, refusing(StatusCode.UNAVAILABLE, share=0.1))
        result = run(name, [many([*ROWS, *BAD])])
        calls = proxy.calls["MutateRows"]
    query = result.metrics().query()
    counters = {metric.key.metric.name: metric.result for metric in query["counters"]}
    counted = [counters[name] for name in (metrics.BULK_ROWS, metrics.BULK_REFUSED, metrics.BULK_REQUESTS)]
    assert counted == [100, len(BAD), calls]
    assert counters["dead_letters"] == counters["dead_letters_ROW_REFUSED"] == len(BAD)
    assert counters[metrics.bulk_retries_of("UNAVAILABLE")] == 10
    assert counters[metrics.BULK_BYTES] > 112 * 20
    distributions = {metric.key.metric.name: metric.result for metric in query["distributions"]}
    assert distributions[metrics.BULK_LATENCY_MS].count == calls
    assert distributions[metrics.BULK_ROWS_IN_FLIGHT].max == 112
    assert Lineage.query(result.metrics(), Lineage.SINK) == {f"bigtable:{name.project}.{name.instance}.{name.table}"}


def test_service_calls(name):
    """Every entry is counted by its status, with the connector's labels."""
    counted = {}
    run(name, [many([*ROWS, *BAD])])
    infos = MetricsEnvironment.process_wide_container().to_runner_api_monitoring_infos(None).values()
    for info in infos:
        if info.urn == API_REQUEST_COUNT_URN and info.labels["TABLE_ID"] == name.table:
            assert info.labels["METHOD"] == "google.bigtable.v2.MutateRows"
            assert info.labels["SERVICE"] == "BigTable"
            counted[info.labels["STATUS"]] = info.payload[0]
    # Entries that were rejected together are retried one by one.
    assert counted == {"ok": 100, "internal": 2 * len(BAD)}


def test_a_bundle_that_cannot_be_finished(name, bigtable, monkeypatch):
    """The bundle fails, with the count and the cause."""
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations = failing(StatusCode.UNAVAILABLE)
        with pytest.raises(ServerError, match=f"^table {name}: 100 rows could not be written: UNAVAILABLE: failed"):
            run(name, [many(ROWS)], limits=Limits(deadline_s=0.5))


def written(write_fn, bundle):
    write_fn.start_bundle()
    for element in bundle:
        assert not write_fn.process(element)
    return list(write_fn.finish_bundle())


def test_a_bundle_after_one_that_failed(name):
    """A bundle after a failed one writes its own rows, and none of the other's."""
    write_fn = BulkWriteFn(name, "WriteRows", clock=lambda: NOW_S)
    write_fn.setup()
    write_fn.start_bundle()
    write_fn.process(many(ROWS[:10]))  # and then another step fails
    assert written(write_fn, [many(ROWS[10:])]) == []
    write_fn.teardown()
    assert keys_of(name) == [row.key for row in ROWS[10:]]


def test_one_client_for_a_process(name):
    """All instances and threads share one client."""
    _shared_client.cache_clear()
    instances = [BulkWriteFn(name, "WriteRows", clock=lambda: NOW_S) for _ in range(5)]
    threads = [threading.Thread(target=instance.setup) for instance in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _shared_client.cache_info().misses == 1
    for number, instance in enumerate(instances):
        assert written(instance, [ROWS[number]]) == []
        instance.teardown()
    assert keys_of(name) == [row.key for row in ROWS[:5]]


def test_a_graph_without_warnings(name, caplog):
    """Building a job's graph warns of nothing."""
    _ = beam.Pipeline() | beam.Create(ROWS) | BulkWriteRows(name)
    assert caplog.text == ""
