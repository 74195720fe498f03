"""Policies of the built-in Bigtable, whose clock these tests move: collection on read, and by compaction."""

import pytest
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types as data_types

from pipeline.local.embedded import tables
from pipeline.local.embedded.tables import MemoryTable, expired

SECOND_US = 10**6
NOW_US = 10**9 * SECOND_US


def policy(**fields):
    return admin_types.GcRule.pb()(**fields)


def aged(seconds):
    return {"max_age": {"seconds": seconds}}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ({}, [0, 1, 2, 10]),
        ({"max_num_versions": 2}, [0, 1]),
        ({"max_num_versions": 0}, []),
        (aged(2), [0, 1, 2]),
        ({"max_age": {"seconds": 1, "nanos": 999_999_000}}, [0, 1]),
        ({"union": {"rules": [aged(2), {"max_num_versions": 2}]}}, [0, 1]),
        ({"union": {"rules": [aged(1), {"max_num_versions": 3}]}}, [0, 1]),
        ({"intersection": {"rules": [aged(2), {"max_num_versions": 2}]}}, [0, 1, 2]),
        ({"intersection": {"rules": [aged(0), {"max_num_versions": 3}]}}, [0, 1, 2]),
        ({"union": {"rules": []}}, [0, 1, 2, 10]),
        ({"intersection": {"rules": [aged(0), {"union": {"rules": [aged(1), {"max_num_versions": 3}]}}]}}, [0, 1]),
    ],
)
def test_what_policies_keep(rule, kept):
    """Of cells of these ages in seconds. A union collects what one of its policies does not keep, an intersection what
    none keeps."""
    times_us = [NOW_US - age * SECOND_US for age in (0, 1, 2, 10)]
    left = [time_us for time_us in times_us if time_us not in expired(policy(**rule), times_us, NOW_US)]
    assert [(NOW_US - time_us) // SECOND_US for time_us in left] == kept


class Clock:
    def __init__(self):
        self.now_us = NOW_US

    def __call__(self):
        return self.now_us


def table_of(clock, **rule):
    family = admin_types.ColumnFamily.pb()(gc_rule=policy(**rule))
    return MemoryTable({"a": family}, clock)


def write(table, key, *times_us):
    cells = [{"set_cell": {"family_name": "a", "timestamp_micros": each, "value": b"v"}} for each in times_us]
    table.mutate(key, [data_types.Mutation.pb()(**cell) for cell in cells])


def keys_of(table):
    return [key for batch in table.keys([tables.ALL_KEYS]) for key in batch]


def test_a_read_collects():
    """A cell is there until its time is over, and then gone from the next read; so is its row."""
    clock = Clock()
    table = table_of(clock, **aged(10))
    write(table, b"k", NOW_US, NOW_US - 5 * SECOND_US)
    assert len(table.cells(b"k")) == 2
    clock.now_us += 6 * SECOND_US
    assert [cell.time_us for cell in table.cells(b"k")] == [NOW_US]
    clock.now_us += 6 * SECOND_US
    assert table.cells(b"k") == []
    assert keys_of(table) == []


def test_a_compaction_collects_what_nobody_reads():
    """After as many writes as the table has rows, and a thousand at least, no row is left that its policy expires."""
    clock = Clock()
    table = table_of(clock, **aged(10))
    write(table, b"old", NOW_US)
    clock.now_us += 20 * SECOND_US
    for number in range(1000):
        write(table, b"new", clock.now_us + number * 1000)
    assert keys_of(table) == [b"new"]
    assert table.size(b"old") == 0


def test_an_increment_begins_anew_after_collection():
    """A value that a policy does not keep is not changed, but replaced."""
    clock = Clock()
    table = table_of(clock, **aged(10))
    rule = data_types.ReadModifyWriteRule.pb()(family_name="a", column_qualifier=b"n", increment_amount=1)
    assert [table.read_modify_write(b"k", [rule])[0].value[-1] for _ in range(2)] == [1, 2]
    clock.now_us += 20 * SECOND_US
    assert table.read_modify_write(b"k", [rule])[0].value[-1] == 1
