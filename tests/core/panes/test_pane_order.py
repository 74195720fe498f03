"""The order in which the rows of panes are written."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.panes.pane_order import PaneOrder, number_of_rows, pane_bytes
from pipeline.core.rows.rows import EncodedRow, EncodedRows


def pane(group, number, *keys):
    return pane_bytes(group, number, EncodedRows(EncodedRow(key, b"%d" % number, 1) for key in keys))


@given(st.integers(), st.integers(1, 12))
def test_any_order_of_arrival(seed, count):
    """Panes come in any order, some twice, some together: rows are passed on once each and in the order of panes."""
    rng = random.Random(seed)
    panes = [
        pane(group, number, b"a%d" % group, b"%d-%d" % (group, number)) for group in range(2) for number in range(count)
    ]
    panes += rng.sample(panes, rng.randint(0, 2))
    rng.shuffle(panes)
    state, waiting, seen, last = None, [], set(), {}
    while panes or waiting:
        taken, panes = panes[:2], panes[2:]
        order = PaneOrder(state)
        rows, waiting = order.take([*waiting, *taken])
        state = order.to_bytes()
        assert len({row.key for row in rows}) == len(rows)
        for row in rows:
            number = int(row.mutations)
            assert last.get(row.key, -1) <= number
            last[row.key] = number
            seen.add(row.key)
        assert panes or not waiting
    assert last[b"a0"] == last[b"a1"] == count - 1
    assert len(seen) == 2 + 2 * count


def test_the_last_pane_of_a_row_counts():
    order = PaneOrder()
    rows, waiting = order.take([pane(1, 1, b"a", b"b"), pane(1, 0, b"a", b"c")])
    assert {row.key: row.mutations for row in rows} == {b"a": b"1", b"b": b"1", b"c": b"0"}
    assert not waiting


def test_newest_readings_of_each_pane():
    """A later pane of a sensor may have an older reading, or another metric."""
    rows, _ = PaneOrder().take([pane(1, 1, b"latest#a", b"b"), pane(1, 0, b"latest#a", b"b")])
    assert [(row.key, row.mutations) for row in rows] == [(b"b", b"1"), (b"latest#a", b"0"), (b"latest#a", b"1")]


def test_rows_wait_for_earlier_panes():
    order = PaneOrder()
    rows, waiting = order.take([pane(1, 1, b"a"), pane(2, 0, b"b")])
    assert [row.key for row in rows] == [b"b"]
    assert waiting == [pane(1, 1, b"a")]


def test_the_bytes_of_this_release():
    sizes = "01000000" "01000000" "01000000"  # fmt: skip
    assert pane(7, 1, b"k").hex() == "01" "07000000" "0100000000000000" "01000000" + sizes + "6b" "31"  # fmt: skip
    assert number_of_rows(pane(7, 1, b"k", b"l")) == 2
    order = PaneOrder()
    order.take([pane(7, 0, b"k")])
    assert order.to_bytes().hex() == "01" "07000000" "0100000000000000"  # fmt: skip


def test_another_release():
    with pytest.raises(ValueError, match="another release wrote these panes"):
        PaneOrder(b"\x02")
    with pytest.raises(ValueError, match="another release wrote these panes"):
        number_of_rows(b"\x02" + pane(1, 0, b"a")[1:])


def test_groups_are_independent():
    rng = random.Random(1)
    panes = [pane(group, 0, b"%d" % group) for group in range(100)]
    rng.shuffle(panes)
    rows, waiting = PaneOrder().take(panes)
    assert len(rows) == 100
    assert not waiting
