from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.schema.family_rules import FamilyRules, overlap

SOME = FamilyRules((("measurements", ("temperature", "humidity")), ("logs", ("log_*",))))
ALL = FamilyRules((*SOME.globs, ("raw", ("*",))))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("temperature", "measurements"),
        ("humidity", "measurements"),
        ("log_", "logs"),
        ("log_errors", "logs"),
        ("Log_errors", "raw"),
        ("temperature2", "raw"),
        ("a_log_b", "raw"),
    ],
)
def test_family_of(name, family):
    """A name goes to the first family with a matching glob; case matters."""
    assert ALL.family_of(name) == family
    assert SOME.family_of(name) == (family if family != "raw" else None)


@pytest.mark.parametrize(
    ("rules", "exhaustive", "catch_all"),
    [
        (FamilyRules(), False, None),
        (SOME, False, None),
        (ALL, True, None),
        (FamilyRules((("raw", ("*",)),)), True, "raw"),
        (FamilyRules((("raw", ("t", "*")), ("b", ("x",)))), True, "raw"),
    ],
)
def test_which_names_are_taken(rules, exhaustive, catch_all):
    """Rules know whether a name can be left over, and whether they take every name."""
    assert rules.exhaustive is exhaustive
    assert rules.catch_all == catch_all
    assert rules.families == tuple(family for family, _ in rules.globs)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("temperature", "t*", True),
        ("temperature", "humidity", False),
        ("temp_*", "*erature", True),
        ("a*b*c", "*bb*", True),
        ("a*b", "b*a", False),
        ("t?", "t", False),
        ("t?", "*?*?", True),
        ("temp_[!a-z]*", "temp_a", False),
        ("temp_[!a-z]*", "temp_?1", True),
        ("[]-]", "[!x]", False),  # no name begins with it
        ("a[b", "*", False),  # a bracket without an end stands for itself, which no name contains
        ("a[b]", "a[!c]", True),
        ("1*", "*", False),
        ("*1", "*", True),
        ("", "*", False),
        ("*", "*", True),
        ("*a" * 200, "*b" * 200, False),
        ("*a" * 200 + "*", "*b" * 200 + "*", True),
    ],
)
def test_overlap(one, other, common):
    """Globs overlap if a valid name matches both."""
    assert overlap(one, other) is overlap(other, one) is common


@given(st.text("ab*?1"), st.text("ab*?1"), st.from_regex(r"\A[ab][ab1]{0,4}\Z"))
def test_globs_that_match_a_name_overlap(one, other, name):
    """If a name matches two globs, they overlap."""
    if fnmatchcase(name, one) and fnmatchcase(name, other):
        assert overlap(one, other)
