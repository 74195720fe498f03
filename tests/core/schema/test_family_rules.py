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
    """A name goes to the first family that has a matching glob, capitals told apart."""
    assert ALL.family_of(name) == family
    assert SOME.family_of(name) == (family if family != "raw" else None)


def test_the_first_that_matches():
    """The order of families decides where several match."""
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
def test_what_is_taken(rules, exhaustive, catch_all):
    """Whether a name can be left over, and whether names matter at all."""
    assert rules.exhaustive is exhaustive
    assert rules.catch_all == catch_all
    assert rules.families == tuple(family for family, _ in rules.globs)


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3), st.sampled_from(["t", "log_x", "a.b-c"]))
def test_any_glob(globs, name):
    """Whatever text a glob is, it matches or does not."""
    assert FamilyRules((("raw", tuple(globs)),)).family_of(name) in ("raw", None)


def test_pickles():
    """Routes that have been used travel between workers."""
    assert ALL.family_of("log_x") == "logs"
    copy = pickle.loads(pickle.dumps(ALL))  # noqa: S301 (our own)
    assert copy == ALL
    assert copy.family_of("log_x") == "logs"
