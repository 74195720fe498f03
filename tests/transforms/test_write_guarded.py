"""A bundle whose rows may be in another table than the job's fails, with either writer and in every step."""

import apache_beam as beam
import pytest
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import noted_id
from pipeline.cloud.tables.table_guard import AnotherTable, TableGuard
from pipeline.core.rows.rows import Cell, EncodedRows, KeyRange, Row, encoded
from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.job.graph import assemble
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.transforms.write import BulkWriteRows, WriteRows
from tests.support.lasting import lasting
from tests.support.tables import created

DEFAULT = lasting(TableSchema.for_new_table())
ROWS = [Row(b"%03d" % i, [Cell("raw", b"q", 1_771_329_600_000_000, b"v")]) for i in range(3)]
WRITERS = {
    "connector": WriteRows,
    "bulk": lambda name, guard: BulkWriteRows(name, schema=DEFAULT, guard=guard),
}


@pytest.fixture
def name(bigtable):
    return created(DEFAULT)


def write(guard, writer, meanwhile=lambda: None):
    """Writes a bundle, with something that happens when its first row has come; returns the dead letters."""

    def then(index):
        if not index:
            meanwhile()
        return EncodedRows([encoded(ROWS[index])])

    with beam.Pipeline(FnApiRunner()) as pipeline:
        rows = pipeline | beam.Create(range(len(ROWS)), reshuffle=False) | "Meanwhile" >> beam.Map(then)
        letters = rows | "WriteRows" >> WRITERS[writer](guard.name, guard)
        if writer == "bulk":
            assert_that(letters, equal_to([]))


def keys_of(name):
    with RowReader.open(name) as reader:
        return [row.key for row in reader.read([KeyRange(b"0", b"1")])]


@pytest.mark.parametrize("writer", WRITERS)
def test_the_same_table(name, writer):
    """The job's own table takes the rows."""
    write(TableGuard.of(name, DEFAULT, noted_id(name), 0.0), writer)
    assert keys_of(name) == [row.key for row in ROWS]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_bundle_in_another_table(name, writer):
    """A bundle during which the table was created again fails, and the next one writes nothing."""

    def recreate():
        tables.delete(name)
        tables.create(name, parse_schema('values = "float64"'))

    guard = TableGuard.of(name, DEFAULT, noted_id(name), 0.0)
    with pytest.raises(AnotherTable, match=r"was deleted and created again .* values was 'text' and is 'float64'"):
        write(guard, writer, recreate)
    recreate()
    with pytest.raises(AnotherTable):
        write(guard, writer)
    assert keys_of(name) == []


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("families", [{}, {"others": Never(), SCHEMA_FAMILY: Never()}], ids=["deleted", "of others"])
def test_rows_that_the_other_table_refuses(name, writer, families):
    """A table that is gone, or is another one without the families, is the reason, and no row is a dead letter."""

    def recreate():
        tables.delete(name)
        if families:
            tables.create_bare(name, families)

    guard = TableGuard.of(name, DEFAULT, noted_id(name), 3600.0)  # so not because a check is due
    write(guard, writer)
    with pytest.raises(AnotherTable, match=r"was deleted (and created again )?while the job ran; rows"):
        write(guard, writer, recreate)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("runner", "every_s"), [("DirectRunner", 0.0), ("DataflowRunner", 2.0)])
def test_every_step_that_writes_is_guarded(writer, runner, every_s):
    """The raw rows, aggregates, roll-ups and alerts of each table have its guard."""
    topic = "projects/my-project/topics"
    flags = [
        *(f"--runner={runner}", "--project=my-project", "--bigtable_instance=i"),
        *("--bigtable_table=one,two", f"--input_subscription={topic[:-6]}subscriptions/events"),
        *(f"--dead_letter_topic={topic}/dead", f"--alerts_topic={topic}/alerts", f"--bigtable_writer={writer}"),
    ]
    settings = settings_of(options := parse_flags(flags))
    targets = [Target(name, DEFAULT, table_id=name.table.encode()) for name in settings.tables]
    pipeline = beam.Pipeline(FnApiRunner(), options=options)  # DataflowRunner would look for Google Cloud
    assemble(pipeline, targets, settings, began_us=0)
    visitor = _Guards()
    pipeline.visit(visitor)
    assert {(guard.name, guard.table_id, guard.every_s) for guard in visitor.guards.values()} == {
        (TableName("my-project", "i", table), table.encode(), every_s) for table in ("one", "two")
    }
    assert sorted(visitor.guards) == [
        f"{step}{mark}" for step in ("AggregateWindows", "WriteOtherRows", "WriteRawRows") for mark in ("", "[two]")
    ]


class _Guards(PipelineVisitor):
    """Collects the guards of all steps that write rows, by label."""

    def __init__(self) -> None:
        self.guards: dict[str, TableGuard] = {}

    def visit_transform(self, transform_node):
        step = transform_node.transform
        if isinstance(step, beam.ParDo) and hasattr(step.fn, "guard"):
            self.guards[transform_node.full_label.partition("/")[0]] = step.fn.guard
