"""JSON that the standard does not allow, and what is not JSON for devices either."""

import json
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.device_json import DeviceDecoder

DECODER = DeviceDecoder()
SPELLED = st.sampled_from(["nan", "NaN", "-nan", "NAN", "inf", "Infinity", "+INF", "-inf", "-Infinity"])
TEXTS = st.text(max_size=4) | st.sampled_from(["nan", ", -inf]", 'a"b', "\\", "{}", "[", "\0"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
BETWEEN = st.text(" \t\r\n\0", max_size=2)


@given(st.lists(st.tuples(st.dictionaries(TEXTS, VALUES) | st.lists(VALUES), BETWEEN), min_size=1), SPELLED, st.data())
def test_several_documents_with_numbers_that_are_not_finite(documents, spelled, data):
    """Whatever stands between documents, they are what a parser of single ones finds, and the numbers Python's."""
    text = data.draw(st.sampled_from(["", "\ufeff"]))
    for document, between in documents:
        text += json.dumps([document, 0.5], ensure_ascii=data.draw(st.booleans()))[:-4] + f"{spelled}]{between}"
    number = float(spelled)
    for (document, found), (written, _) in zip(DECODER.documents(text), documents, strict=True):
        assert document == written
        assert repr(found) == (repr(number) if math.isinf(number) else "nan")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Expecting value at character 1"),
        ("\ufeff \0", "Expecting value at character 1"),
        ('{"a": banana}', "Expecting value at character 7"),
        ('{"a": nano}', "Expecting value at character 7"),
        ('{"a": 1nan}', "Expecting ',' delimiter at character 8"),
        ('{"a": nan', "Expecting ',' delimiter at character 10"),
        ('{"a": 1} x', "Expecting value at character 10"),
        ('{"a": 1}, {"a": 2}', "Expecting value at character 9"),
        ("1 2", "Extra data at character 3"),
        ('{} {"a": 1, "a": 2}', "'a' appears twice"),
        ("{}" + "[" * 101 + "nan" + "]" * 101, "it is nested more than 100 levels deep"),
    ],
)
def test_what_is_no_json(text, problem):
    """The line says what is wrong."""
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        list(DECODER.documents(text))


@pytest.mark.parametrize(
    "part", ['"', "\\", '\\"', "n", "nan ", "-", "{", "[[", "\0", "{}", "1", '"a', "inf.", "\ufeff"]
)
def test_hostile_texts_take_linear_time(part):
    """A million characters take a second at most, whatever they are."""
    began = time.monotonic()
    for text in (part * (1_000_000 // len(part)), '["' + part * (1_000_000 // len(part))):
        try:
            for _ in DECODER.documents(text):
                pass
        except ValueError as error:
            assert len(str(error)) < 300  # noqa: PT017
    assert time.monotonic() - began < 10
