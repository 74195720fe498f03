import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.schema.family_rules import FamilyRules

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


def test_the_first_match_wins():
    """If several families match, the first one wins."""
    assert FamilyRules((("a", ("t*",)), ("b", ("*",)))).family_of("t") == "a"
    assert FamilyRules((("b", ("*",)), ("a", ("t*",)))).family_of("t") == "b"


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


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3), st.sampled_from(["t", "log_x", "a.b-c"]))
def test_any_glob(globs, name):
    """Any text is a valid glob."""
    assert FamilyRules((("raw", tuple(globs)),)).family_of(name) in ("raw", None)


def test_pickles():
    """Rules that have been used can be pickled."""
    assert ALL.family_of("log_x") == "logs"
    copy = pickle.loads(pickle.dumps(ALL))  # noqa: S301 (our own)
    assert copy == ALL
    assert copy.family_of("log_x") == "logs"
