"""Readings leave the step that writes their raw rows after the rows are in the table, with either writer."""

import apache_beam as beam
import pytest
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from grpc import StatusCode

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.bulk_writer import Limits
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.panes import grouped_readings
from pipeline.core.panes.grouped_readings import GroupedReadings, RawRows, kind_of, read_group_readings
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.toml import parse_schema
from pipeline.private_apis.bigtable_writer import ConnectorWriteFn
from pipeline.transforms.write import BulkWriteFn, WriteRawRows, _WriteRawFn
from tests.faults.bigtable_proxy import BigtableProxy, failing
from tests.support.tables import keys_of, unused_name

NOON = parse_time("2026-02-17T12:00:00Z")
SCHEMA = parse_schema("[metrics]\nother = ['x']\nraw = ['*']")
WRITERS = {
    "connector": lambda name: ConnectorWriteFn(name, 10_000),
    "bulk": lambda name: BulkWriteFn(name, "WriteRawRows", Limits(deadline_s=0.5)),
}


@pytest.fixture
def name(bigtable):
    name = unused_name()
    tables.create_bare(name, {"raw": Never(), "meta": Never()})
    return name


def raw_of(*events, schema=SCHEMA):
    gathered = GroupedReadings(*kind_of(schema))
    gathered.add(events)
    return RawRows(EncodedRows(schema.encoded_rows(events)), list(gathered.take_groups()))


def event(second, metric="t", sensor_id="a"):
    return Event(sensor_id, NOON + second * 1_000_000, {metric: 1.0}, {})


def times_of(data):
    """Returns the sensors and the times of readings, in seconds after noon."""
    return [
        (each.sensor_id, (time_us - NOON) // 1_000_000) for each in read_group_readings(data) for time_us in each.times
    ]


def passed(outputs):
    """Returns the same of the readings that a step has put out."""
    return [each for output in outputs if not isinstance(output, TaggedOutput) for each in times_of(output.value[1])]


@pytest.mark.parametrize("bulk", [False, True], ids=WRITERS)
def test_readings_follow_their_rows(name, bulk):
    """When readings reach the next step, the table has the rows of their events."""
    elements = [raw_of(*(event(10 * part + second) for second in range(10))) for part in range(3)]

    def look(element):
        keys = keys_of(name)
        for sensor_id, second in times_of(element[1]):
            (row,) = SCHEMA.encoded_rows([event(second, sensor_id=sensor_id)])
            assert row.key in keys
            yield sensor_id, second

    with beam.Pipeline(FnApiRunner()) as pipeline:
        raw = pipeline | beam.Create(elements, reshuffle=False)
        written = raw | WriteRawRows(name, SCHEMA, bulk=bulk)
        assert_that(written.readings | beam.FlatMap(look), equal_to([("a", second) for second in range(30)]))


class LateWriter(beam.DoFn):
    """A writer that confirms its rows at the end of a bundle, and fails as often as it is told."""

    refused = ()

    def __init__(self, failures=0):
        self.confirmed, self.failures = 0, failures

    def start_bundle(self):
        self.rows = 0

    def process(self, element):
        self.rows += len(element)
        return ()

    def finish_bundle(self):
        if self.failures:
            self.failures -= 1
            raise ServerError("away")
        self.confirmed += self.rows
        return ()


def test_nothing_leaves_before_the_writer_confirms():
    """A bundle that fails passes on nothing; repeated, it passes on its readings once, after they are confirmed."""
    writer = LateWriter(failures=1)
    step = _WriteRawFn(writer, SCHEMA)
    step.start_bundle()
    assert not list(step.process(raw_of(event(0))))
    with pytest.raises(ServerError):
        list(step.finish_bundle())
    step.start_bundle()
    for second in range(3):
        assert not list(step.process(raw_of(event(second))))
    assert writer.confirmed == 0
    outputs = step.finish_bundle()
    assert passed([next(outputs)]) == [("a", 0)]
    assert writer.confirmed == 3
    assert passed(outputs) == [("a", 1), ("a", 2)]


def test_a_long_bundle(monkeypatch):
    """A long bundle holds a bounded number of bytes: its rows are confirmed now and then."""
    writer = LateWriter()
    step = _WriteRawFn(writer, SCHEMA)
    monkeypatch.setattr(grouped_readings, "_MOST_UNCONFIRMED_BYTES", 3 * raw_of(event(0)).size_bytes)
    step.start_bundle()
    found = []
    for second in range(7):
        found.append(passed(step.process(raw_of(event(second)))))
        assert writer.confirmed == second // 3 * 3 + 3 * (second % 3 == 2)
    assert found == [[], [], [("a", 0), ("a", 1), ("a", 2)], [], [], [("a", 3), ("a", 4), ("a", 5)], []]
    assert passed(step.finish_bundle()) == [("a", 6)]
    assert writer.confirmed == 7


@pytest.mark.parametrize("writer", WRITERS)
def test_a_write_that_fails(name, bigtable, monkeypatch, writer):
    """A bundle that can't be written passes on nothing; when it comes again, its readings leave once."""
    step = _WriteRawFn(WRITERS[writer](name), SCHEMA)
    raw = raw_of(event(0), event(1))
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        proxy.mutations = failing(StatusCode.UNAVAILABLE if writer == "bulk" else StatusCode.INVALID_ARGUMENT)
        step.setup()
        step.start_bundle()
        assert not list(step.process(raw))
        with pytest.raises(ServerError, match="2 rows could not be written"):
            list(step.finish_bundle())
        proxy.mutations = None
        step.start_bundle()
        assert not list(step.process(raw))
        assert passed(step.finish_bundle()) == [("a", 0), ("a", 1)]
        step.teardown()
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
    assert len(keys_of(name)) == 2


def test_refused_rows_mark_nothing(name):
    """Readings of refused rows are dead letters and leave nowhere; those of other rows in the same window do."""
    events = [event(second, "x" if second % 3 == 0 else "t") for second in range(10)]
    with beam.Pipeline(FnApiRunner()) as pipeline:
        raw = pipeline | beam.Create([raw_of(*events[:5]), raw_of(*events[5:])], reshuffle=False)
        written = raw | WriteRawRows(name, SCHEMA, bulk=True)
        found = written.readings | beam.FlatMap(lambda element: times_of(element[1]))
        assert_that(found, equal_to([("a", second) for second in (1, 2, 4, 5, 7, 8)]))
        keys = written.dead_letters | beam.Map(lambda letter: letter.attributes["row_key"].encode())
        refused = [SCHEMA.encoded_rows([events[second]])[0].key for second in (0, 3, 6, 9)]
        assert_that(keys, equal_to(refused), label="refused")


def test_each_table_follows_its_own_rows(name):
    """A reading that one table refuses counts in another that takes it, and the tables share what was gathered."""
    other = unused_name()
    tables.create_bare(other, {"raw": Never(), "other": Never()})
    shared = raw_of(event(0, "x"), event(1))
    expected = {name: [("a", 1)], other: [("a", 0), ("a", 1)]}
    with beam.Pipeline(FnApiRunner()) as pipeline:
        raw = pipeline | beam.Create([shared], reshuffle=False)
        for table, times in expected.items():
            written = raw | f"Write{table.table}" >> WriteRawRows(table, SCHEMA, bulk=True)
            found = written.readings | f"Times{table.table}" >> beam.FlatMap(lambda element: times_of(element[1]))
            assert_that(found, equal_to(times), label=table.table)


def test_a_connector_s_refusals_fail_the_bundle(name):
    """Beam's connector has no dead letters: a refused row fails its bundle, and nothing of it counts."""
    step = _WriteRawFn(WRITERS["connector"](name), SCHEMA)
    step.setup()
    step.start_bundle()
    step.process(raw_of(event(0, "x"), event(1)))
    with pytest.raises(ServerError, match="could not be written"):
        list(step.finish_bundle())
