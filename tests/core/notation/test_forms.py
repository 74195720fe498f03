"""Forms, against the standard library's writer."""

import re
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.forms import parse_form


@given(
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1),
    st.booleans(),
    st.sampled_from(["", "\r\n", "\0"]),
)
def test_what_the_writer_writes(fields, uses_plus, end):
    """Fields have their names and texts; an empty one is none."""
    text = urlencode(fields) if uses_plus else urlencode(fields, quote_via=quote)
    assert parse_form((text + end).encode()) == {name: value or None for name, value in fields.items()}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "'' is not a field, like name=value"),
        (b'{"a": 1}', """'{"a": 1}' is not a field, like name=value"""),
        (b"a=1&%61=2", "'a' appears twice"),
        (b"a=%FF", "'a=%FF' has bytes that are not UTF-8"),
        (b"a=\xff", "byte 3 is not text in UTF-8; save it as UTF-8"),
    ],
)
def test_what_is_no_form(data, problem):
    """The line says what is wrong."""
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        parse_form(data)
