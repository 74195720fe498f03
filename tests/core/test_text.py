"""Foreign text neither steers a terminal nor ends a line."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.text import json_line, plain, shown

UNSAFE = [
    chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
]
SAFE = "aé漢ß😀ﷺ°µ½ 'x\"\\"


def test_every_unsafe_character_is_escaped():
    """Control characters of both blocks, DEL, format and bidirectional marks, separators of lines, surrogates."""
    for character in UNSAFE:
        assert json_line({character: character}).isprintable()
        assert plain(f"a{character}b").isprintable()


def test_other_characters_stay():
    """Text of any script is not made unreadable."""
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
    """As JSON has them, and as Python has them."""
    assert json_line(text) == f'"{in_json}"'
    assert plain(text) == in_a_line


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters() | st.sampled_from(UNSAFE), max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_reads_back(value):
    """A line is one line, can be encoded, and is the same value again."""
    line = json_line(value)
    assert len(line.splitlines()) == 1
    assert json.loads(line.encode()) == value


def test_shown_is_short():
    """What is quoted in a message is at most so long, and ASCII."""
    assert shown("x" * 81) == "'" + "x" * 80 + "\\u2026'"
    assert shown("\u202e") == r"'\u202e'"
