"""Untrusted text can neither control a terminal nor break a line."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.notation.text import json_line, plain, shown

UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # categories
SAFE = "aé漢ß😀ﷺ°µ½ 'x\"\\"


def test_every_unsafe_character_is_escaped():
    """Control characters, DEL, format and bidirectional marks, line separators and surrogates are escaped."""
    characters = map(chr, range(sys.maxunicode + 1))
    for character in (each for each in characters if unicodedata.category(each) in UNSAFE):
        assert json_line({character: character}).isprintable()
        assert plain(f"a{character}b").isprintable()


def test_other_characters_stay():
    """Readable text of any script stays unchanged."""
    assert json_line(SAFE) == json.dumps(SAFE, ensure_ascii=False)
    assert plain(SAFE) == SAFE


@pytest.mark.parametrize(
    ("text", "in_json", "in_a_line"),
    [
        ("\x9b2J", r"\u009b2J", r"\x9b2J"),
        ("\x7f", r"\u007f", r"\x7f"),
        ("\u202eabc", r"\u202eabc", r"\u202eabc"),
        ("\u2028\n", r"\u2028\n", r"\u2028\n"),
        ("\ud800", r"\ud800", r"\ud800"),
        ("\U000e0041", r"\udb40\udc41", r"\U000e0041"),
    ],
)
def test_escapes(text, in_json, in_a_line):
    """Characters are escaped in JSON's and in Python's syntax."""
    assert json_line(text) == f'"{in_json}"'
    assert plain(text) == in_a_line


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters() | st.characters(categories=UNSAFE), max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_reads_back(value):
    """The JSON is one line, can be encoded, and parses back to the same value."""
    line = json_line(value)
    assert len(line.splitlines()) == 1
    assert json.loads(line.encode()) == value


def test_shown_is_short():
    """Text quoted in a message is truncated, and its unprintable characters are escaped."""
    assert shown("x" * 81) == "'" + "x" * 80 + "…'"
    assert shown("\u202e") == r"'\u202e'"
    assert shown("t_°C") == "'t_°C'"
