import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.key_ranges import Sample, sampled_keys, split_points
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.rows.rows import Cell, KeyRange, split_range
from pipeline.core.schema.table_schema import TableSchema
from tests.support.bare_tables import write
from tests.support.lasting import lasting
from tests.support.tables import unused_name

keys = st.binary(max_size=3)


def test_the_samples_of_a_table(bigtable):
    """They are in the order of keys, and the last one has the size of the table."""
    name = unused_name()
    tables.create(name, lasting(TableSchema.default()))
    write(name, {b"%05d" % i: [Cell("raw", b"t", 0, b"x" * 100)] for i in range(2000)})
    samples = sampled_keys(name)
    named = [sample.key for sample in samples if sample.key]
    assert named == sorted(named)
    assert samples[-1].offset_bytes > 2000 * 100


def test_a_missing_table(bigtable):
    """The error is one line."""
    name = TableName("test-project", "test-instance", "none")
    with pytest.raises(ServerError, match=f"^{name.is_missing}$"):
        sampled_keys(name)


@pytest.mark.parametrize(
    ("offsets", "min_bytes", "expected"),
    [
        ([], 10, []),
        ([5], 10, []),
        ([10, 20, 30], 10, [0, 1]),  # the last sample is the table's end
        ([4, 8, 12, 16, 40], 10, [2]),
        ([9, 9, 11, 30], 10, [2]),
        (list(range(1, 5002)), 1, range(4, 5000, 5)),  # at most a thousand parts
    ],
)
def test_split_points(offsets, min_bytes, expected):
    """The parts between them are large enough for a request."""
    samples = [Sample(b"%05d" % number, offset) for number, offset in enumerate(offsets)]
    samples[-1:] = [sample._replace(key=b"") for sample in samples[-1:]]
    assert split_points(samples, min_bytes) == [b"%05d" % number for number in expected]


@given(keys, keys, st.lists(keys, max_size=6, unique=True).map(sorted), keys)
def test_split_range(start, end, at, key):
    """The parts contain each key of the range once, and no other key."""
    if end and start > end:
        start, end = end, start

    def has(part):
        return part.start <= key and (not part.end or key < part.end)

    assert sum(map(has, split_range(KeyRange(start, end), at))) == has(KeyRange(start, end))
