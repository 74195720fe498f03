from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.rows.rows import KeyRange, after_prefix, prefix_range

keys = st.binary(max_size=6) | st.lists(st.sampled_from(b"a\xfe\xff"), max_size=6).map(bytes)


@given(keys, keys)
def test_range_of_a_prefix(prefix, key):
    """A prefix's range contains exactly the keys that start with it."""
    start, end = prefix_range(prefix)
    assert (start <= key and (not end or key < end)) == key.startswith(prefix)


def test_a_prefix_without_end():
    """The range of the greatest bytes, and that of an empty prefix, reach to the table's end."""
    assert after_prefix(b"a\xff") == b"b"
    assert after_prefix(b"\xff\xff") == b""
    assert prefix_range(b"") == KeyRange(b"", b"")
