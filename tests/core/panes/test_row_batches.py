"""The order in which batches of rows are written."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.panes.row_batches import BatchOrder, batch_bytes, number_of_rows, parts_of
from pipeline.core.rows.rows import EncodedRow, EncodedRows


def batch(group, number, *keys):
    return batch_bytes(group, number, EncodedRows(EncodedRow(key, b"%d" % number, 1) for key in keys))


@given(st.integers(), st.integers(1, 12))
def test_any_order_of_arrival(seed, count):
    """Batches come in any order, some twice, some together: their rows are passed on once each, and in order."""
    rng = random.Random(seed)
    batches = [
        batch(group, number, b"a%d" % group, b"%d-%d" % (group, number))
        for group in range(2)
        for number in range(count)
    ]
    batches += rng.sample(batches, rng.randint(0, 2))
    rng.shuffle(batches)
    state, waiting, seen, last = None, [], set(), {}
    while batches or waiting:
        taken, batches = batches[:2], batches[2:]
        order = BatchOrder(state)
        rows, waiting = order.take([*waiting, *taken])
        state = order.to_bytes()
        assert len({row.key for row in rows}) == len(rows)
        for row in rows:
            number = int(row.mutations)
            assert last.get(row.key, -1) <= number
            last[row.key] = number
            seen.add(row.key)
        assert batches or not waiting
    assert last[b"a0"] == last[b"a1"] == count - 1
    assert len(seen) == 2 + 2 * count


def test_the_last_batch_of_a_row_counts():
    """Each row is returned once, as its last batch has it."""
    order = BatchOrder()
    rows, waiting = order.take([batch(1, 1, b"a", b"b"), batch(1, 0, b"a", b"c")])
    assert {row.key: row.mutations for row in rows} == {b"a": b"1", b"b": b"1", b"c": b"0"}
    assert not waiting


def test_newest_readings_of_each_batch():
    """A later batch of a sensor may have an older reading, or another metric."""
    rows, _ = BatchOrder().take([batch(1, 1, b"latest#a", b"b"), batch(1, 0, b"latest#a", b"b")])
    assert [(row.key, row.mutations) for row in rows] == [(b"b", b"1"), (b"latest#a", b"0"), (b"latest#a", b"1")]


def test_rows_wait_for_earlier_batches():
    """A batch waits until the group's earlier ones have come."""
    order = BatchOrder()
    rows, waiting = order.take([batch(1, 1, b"a"), batch(2, 0, b"b")])
    assert [row.key for row in rows] == [b"b"]
    assert waiting == [batch(1, 1, b"a")]


def test_the_bytes_of_this_release():
    """A batch's bytes stay as they are, so that jobs can be updated."""
    sizes = "01000000" "01000000" "01000000"  # fmt: skip
    assert batch(7, 1, b"k").hex() == "01" "07000000" "0100000000000000" "01000000" + sizes + "6b" "31"  # fmt: skip
    assert number_of_rows(batch(7, 1, b"k", b"l")) == 2
    order = BatchOrder()
    order.take([batch(7, 0, b"k")])
    assert order.to_bytes().hex() == "01" "07000000" "0100000000000000"  # fmt: skip


def test_another_release():
    """Batches and state of another release are refused."""
    with pytest.raises(ValueError, match="another release wrote these panes"):
        BatchOrder(b"\x02")
    with pytest.raises(ValueError, match="another release wrote these panes"):
        number_of_rows(b"\x02" + batch(1, 0, b"a")[1:])


def test_groups_are_independent():
    """No group's batches wait for those of another."""
    rng = random.Random(1)
    batches = [batch(group, 0, b"%d" % group) for group in range(100)]
    rng.shuffle(batches)
    rows, waiting = BatchOrder().take(batches)
    assert len(rows) == 100
    assert not waiting


def test_large_firings_are_several_batches():
    """All rows are in a batch of their firing, none of which is much larger than two megabytes."""
    rows = EncodedRows(EncodedRow(b"%d" % n, bytes(100_000), 1) for n in range(50))
    parts = list(parts_of(rows))
    assert [row for part in parts for row in part] == list(rows)
    assert [len(part) for part in parts] == [21, 21, 8]
    assert list(parts_of(EncodedRows())) == []
