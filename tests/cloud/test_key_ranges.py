import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud import tables
from pipeline.cloud.errors import ServerProblem
from pipeline.cloud.key_ranges import Sample, sampled_keys, split_points, split_range
from pipeline.cloud.names import TableName
from pipeline.core.rows import Cell, KeyRange
from pipeline.core.schema.table_schema import TableSchema
from tests.cloud.test_rewriter import write

keys = st.binary(max_size=3)


def test_the_samples_of_a_table(bigtable):
    """They are in the order of keys, and the last of them tells how large the table is."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex[:12]}")
    tables.create(name, TableSchema.default())
    write(name, {b"%05d" % i: [Cell("raw", b"t", 0, b"x" * 100)] for i in range(2000)})
    samples = sampled_keys(name)
    named = [sample.key for sample in samples if sample.key]
    assert named == sorted(named)
    assert samples[-1].offset_bytes > 2000 * 100


def test_a_table_that_is_not_there(bigtable):
    """It is one line."""
    name = TableName("test-project", "test-instance", "none")
    with pytest.raises(ServerProblem, match=f"^table {name} does not exist$"):
        sampled_keys(name)


@pytest.mark.parametrize(
    ("offsets", "least", "wanted"),
    [
        ([], 10, []),
        ([5], 10, []),
        ([10, 20, 30], 10, [0, 1]),  # the last sample is the table's end
        ([4, 8, 12, 16, 40], 10, [2]),
        ([9, 9, 11, 30], 10, [2]),
        (list(range(1, 5002)), 1, range(4, 5000, 5)),  # at most a thousand parts
    ],
)
def test_cuts(offsets, least, wanted):
    """Between them lies enough to be worth a request."""
    samples = [Sample(b"%05d" % number, offset) for number, offset in enumerate(offsets)]
    samples[-1:] = [sample._replace(key=b"") for sample in samples[-1:]]
    assert split_points(samples, least) == [b"%05d" % number for number in wanted]


@given(keys, keys, st.lists(keys, max_size=6, unique=True).map(sorted), keys)
def test_divided(start, end, at, key):
    """The parts of a range hold each of its keys once, and no other."""
    if end and start > end:
        start, end = end, start

    def has(part):
        return part.start <= key and (not part.end or key < part.end)

    assert sum(map(has, split_range(KeyRange(start, end), at))) == has(KeyRange(start, end))
