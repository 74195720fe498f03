"""Whatever reads or writes rows of a table takes the route of the table's app profile."""

import time
import uuid
from dataclasses import replace

from pipeline.cloud.connection.key_ranges import sampled_keys
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import record_added_tiers, retention_of
from pipeline.cloud.tables.schema_store import replace_text
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import TableSchema
from tests.faults.bigtable_proxy import BigtableProxy
from tests.support.row_server import EVERYTHING

NAME = TableName("test-project", "test-instance", "sensors", "batch")


def test_the_app_profile_is_no_part_of_the_path():
    """The administration of tables, and messages, name the table alone."""
    assert (
        str(NAME)
        == str(replace(NAME, app_profile=""))
        == "projects/test-project/instances/test-instance/tables/sensors"
    )


def test_requests_carry_the_app_profile(bigtable, monkeypatch):
    """Every method that reads, samples, writes, rewrites or compares rows."""
    name = replace(NAME, table=f"t-{uuid.uuid4().hex}")
    schema = TableSchema.default()
    with BigtableProxy(bigtable) as proxy:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
        tables.create(name, schema)  # stores the schema, which compares
        record_added_tiers(name, ["stats"])
        retention_of(name, schema, tables.describe(name))
        with BulkWriter.open(name) as writer, Rewriter.open(name) as rewriter, RowReader.open(name) as reader:
            writer.add(Row(b"a", [Cell("raw", b"t", time.time_ns() // 10**6 * 1000, b"1")]))
            writer.finish()
            assert next(reader.with_new_counters().read(EVERYTHING)).key == b"a"
            rewriter.delete_rows([b"a"])
        sampled_keys(name)
        with SensorTable.open(name.project, name.instance, name.table, app_profile="batch") as opened:
            list(opened.sensors())
        assert not replace_text(name, b"another text", None)
    assert {*proxy.app_profiles} == {"ReadRows", "MutateRows", "MutateRow", "CheckAndMutateRow", "SampleRowKeys"}
    assert {profile for profiles in proxy.app_profiles.values() for profile in profiles} == {"batch"}
