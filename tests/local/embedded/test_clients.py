"""Google's own clients of Bigtable with the built-in one: the data client, the older client, and cbt."""

import asyncio
import os
import shutil
import subprocess
import uuid
from datetime import timedelta

import pytest
from google.api_core.exceptions import NotFound
from google.cloud import bigtable
from google.cloud.bigtable import column_family, row_filters, row_set
from google.cloud.bigtable.data import (
    BigtableDataClientAsync,
    DeleteRangeFromColumn,
    ReadRowsQuery,
    RowMutationEntry,
    RowRange,
    SetCell,
)
from google.cloud.bigtable.data import row_filters as data_filters
from google.cloud.bigtable.data.read_modify_write_rules import AppendValueRule, IncrementRule

PROJECT, INSTANCE = "test-project", "test-instance"


@pytest.fixture(autouse=True)
def _environment(embedded, monkeypatch):
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", embedded)


@pytest.fixture
def table():
    """A table of the older client's, with two families."""
    instance = bigtable.Client(PROJECT, admin=True).instance(INSTANCE)
    created = instance.table(f"t-{uuid.uuid4().hex}")
    rule = column_family.GCRuleUnion(
        [column_family.MaxVersionsGCRule(2), column_family.MaxAgeGCRule(timedelta(days=9))]
    )
    created.create(column_families={"a": rule, "b": None})
    yield created
    created.delete()


def test_the_older_client(table):
    """The older client creates tables with policies, writes, reads ranges with filters, drops rows, samples keys."""
    assert table.exists()
    assert set(table.list_column_families()) == {"a", "b"}
    rows = [table.direct_row(f"row-{number}") for number in range(5)]
    for number, row in enumerate(rows):
        row.set_cell("a", "x", f"{number}")
        row.set_cell("b", "y", number)
    assert {status.code for status in table.mutate_rows(rows)} == {0}
    assert table.read_row(b"row-3").cell_value("a", b"x") == b"3"
    keys = row_set.RowSet()
    keys.add_row_range_from_keys(b"row-1", b"row-4")
    found = table.read_rows(row_set=keys, filter_=row_filters.FamilyNameRegexFilter("b"), limit=2)
    assert [(row.row_key, list(row.cells)) for row in found] == [(b"row-1", ["b"]), (b"row-2", ["b"])]
    table.drop_by_prefix("row-1")
    assert [row.row_key for row in table.read_rows()] == [b"row-0", b"row-2", b"row-3", b"row-4"]
    assert list(table.sample_row_keys())
    with pytest.raises(NotFound):
        bigtable.Client(PROJECT, admin=True).instance(INSTANCE).table("nowhere").delete()


def test_the_data_client(table):
    """The asynchronous data client reads, writes in bulk and on conditions, increments, and deletes."""

    async def everything():
        async with (
            BigtableDataClientAsync(project=PROJECT) as client,
            client.get_table(INSTANCE, table.table_id) as rows,
        ):
            entries = [RowMutationEntry(b"row-%d" % n, [SetCell("a", b"x", b"%d" % n)]) for n in range(200)]
            await rows.bulk_mutate_rows(entries)
            query = ReadRowsQuery(row_ranges=[RowRange(b"row-19", b"row-2")], limit=3)
            assert [row.row_key for row in await rows.read_rows(query)] == [b"row-19", b"row-190", b"row-191"]
            sharded = ReadRowsQuery(row_filter=data_filters.CellsColumnLimitFilter(1)).shard(
                await rows.sample_row_keys()
            )
            assert len(await rows.read_rows_sharded(sharded)) == 200

            passes = data_filters.ValueRegexFilter(b"5")
            cells = {
                "true_case_mutations": SetCell("b", b"y", b"yes"),
                "false_case_mutations": SetCell("b", b"y", b"no"),
            }
            assert await rows.check_and_mutate_row(b"row-5", passes, **cells)
            assert not await rows.check_and_mutate_row(b"row-6", passes, **cells)
            assert (await rows.read_row(b"row-5"))["b", b"y"][0].value == b"yes"
            changed = await rows.read_modify_write_row(
                b"row-7", [IncrementRule("b", b"n", 40), AppendValueRule("a", b"x", b"!")]
            )
            assert (changed["b", b"n"][0].value, changed["a", b"x"][0].value) == ((40).to_bytes(8), b"7!")

            await rows.mutate_row(b"row-7", DeleteRangeFromColumn("b", b"n"))
            assert ("b", b"n") not in await rows.read_row(b"row-7")
            assert await rows.row_exists(b"row-7")
            assert await rows.read_row(b"none") is None

    asyncio.run(everything())


@pytest.mark.skipif(shutil.which("cbt") is None, reason="cbt is not installed")
def test_cbt(tmp_path):
    """cbt creates a table with policies, writes, reads and counts."""
    table = f"t-{uuid.uuid4().hex}"

    def cbt(*arguments):
        command = ["cbt", "-project", PROJECT, "-instance", INSTANCE, *arguments]
        alone = os.environ | {"HOME": str(tmp_path)}
        ran = subprocess.run(command, env=alone, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    cbt("createtable", table, "families=a:maxversions=2,b:maxage=9d")
    cbt("set", table, "row-1", "a:x=one", "b:y=1")
    read = cbt("read", table, "prefix=row-", "columns=a:.*")
    assert '"one"' in read
    assert "b:y" not in read
    assert cbt("count", table).split() == ["1"]
