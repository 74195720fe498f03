from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.schema.gc_policies import (
    Intersection,
    MaxAge,
    MaxVersions,
    Never,
    Policy,
    PolicyError,
    Union,
    collected_after,
    counts_versions,
    format_policy,
    keeps_one_version,
    of_newest,
    parse_policy,
    same_policy,
)


def union(*members: Policy) -> Policy:
    return Union(members)


def intersection(*members: Policy) -> Policy:
    return Intersection(members)


def collects(policy: Policy, age: timedelta, newer_versions: int) -> bool:
    """Returns whether a policy collects such a cell."""
    match policy:
        case MaxAge(longest):
            return age > longest
        case MaxVersions(most):
            return newer_versions >= most
        case Union(members):
            return any(collects(member, age, newer_versions) for member in members)
        case Intersection(members):
            return all(collects(member, age, newer_versions) for member in members)
    return False


def problem_with(text: str) -> str:
    try:
        parse_policy(text)
    except PolicyError as error:
        return str(error)
    return ""


DAYS = [MaxAge(timedelta(days=days)) for days in range(10)]
VERSIONS = [MaxVersions(versions) for versions in range(10)]

ages = st.builds(timedelta, milliseconds=st.integers(1, 10**4)) | st.builds(timedelta, days=st.integers(1, 106_751))
leaves = st.builds(MaxAge, ages) | st.builds(MaxVersions, st.integers(1, 65_535))
policies = st.recursive(
    leaves | st.just(Never()),
    lambda members: st.lists(members, min_size=1, max_size=3).flatmap(
        lambda chosen: st.sampled_from([union(*chosen), intersection(*chosen)])
    ),
    max_leaves=8,
)
operators = st.sampled_from(["||", "or", "&&", "and"])


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("never", Never()),
        ("maxage=90d", MaxAge(timedelta(days=90))),
        ("maxage=1ms", MaxAge(timedelta(milliseconds=1))),
        ("maxage=106751d", MaxAge(timedelta(days=106_751))),
        ("maxversions=65535", MaxVersions(65_535)),
        ("maxage = 3d", DAYS[3]),
        ("maxage=3d||maxversions=2", union(DAYS[3], VERSIONS[2])),
        ("maxage=3d or maxversions=2", union(DAYS[3], VERSIONS[2])),
        ("maxage=3d && maxversions=2", intersection(DAYS[3], VERSIONS[2])),
        ("maxage=3d || (maxage=1d && maxversions=2)", union(DAYS[3], intersection(DAYS[1], VERSIONS[2]))),
        ("maxage=1d or (maxage=2d or (maxage=3d or maxage=4d))", union(*DAYS[1:5])),
    ],
)
def test_reads_the_grammar(text: str, policy: Policy) -> None:
    """Ages, numbers of versions, both spellings of the operators, parentheses and never are parsed."""
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("maxage=1d || maxversions=2 && maxage=3d", "(maxage=1d || maxversions=2) && maxage=3d"),
        ("(maxage=5d) or (maxversions=1 and (maxage=4d))", "maxage=5d || (maxversions=1 && maxage=4d)"),
        ("maxage=1d or maxage=2d or maxage=3d", "maxage=1d || maxage=2d || maxage=3d"),
        ("maxage=0024h", "maxage=1d"),
        ("maxage=36h", "maxage=36h"),
        ("maxage=120m", "maxage=2h"),
        ("never", "never"),
    ],
)
def test_parses_from_left_to_right_like_cbt(text: str, plain: str) -> None:
    """Operators have no precedence, as in cbt 1.23.2, and the printed text is unambiguous."""
    assert format_policy(parse_policy(text)) == plain


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'maxage=', 'maxversions=' or '(' expected at character 1, not the end"),
        ("maxage", "'=' expected at character 7, not the end"),
        ("maxage=", "an age (a whole number of ms, s, m, h or d, from 1ms to 106751d) expected at character 8"),
        ("maxage=90", "expected at character 8, not '90'"),
        ("maxage=٣d", "expected at character 8, not '٣d'"),
        ("maxage=0d", "expected at character 8, not '0d'"),
        ("maxage=106752d", "expected at character 8, not '106752d'"),
        (f"maxage={'9' * 5000}d", "expected at character 8"),
        ("maxversions=0", "a number of versions (from 1 to 65535) expected at character 13, not '0'"),
        ("maxversions=65536", "expected at character 13, not '65536'"),
        ("maxage=1d or", "'maxage=', 'maxversions=' or '(' expected at character 13, not the end"),
        ("maxage=1d | maxage=2d", "'||', '&&' or the end expected at character 11, not '|'"),
        ("(maxage=1d", "')' expected at character 11, not the end"),
        ("never or maxage=1d", "expected at character 1, not 'never'"),
        ("(" * 5000 + "maxage=1d" + ")" * 5000, "at most 500 bytes"),
        (" || ".join(["maxage=1d"] * 1000), "at most 500 bytes"),
    ],
)
def test_reports_what_is_wrong_and_where(text: str, problem: str) -> None:
    """An invalid policy is reported in one line with the position, the offending word and an example."""
    error_text = problem_with(text)
    assert problem in error_text
    assert "an example: maxage=30d || (maxage=3d && maxversions=100)" in error_text
    assert len(error_text) < 400


@given(st.lists(st.sampled_from(["maxage", "maxversions", "=", "(", ")", "||", "&", "or", "1d", "2", " ", "\n", "é"])))
def test_any_text_is_a_policy_or_a_policy_error_of_one_line(parts: list[str]) -> None:
    """Any text is either a policy or a PolicyError with a message of one line."""
    assert len(problem_with("".join(parts)).splitlines()) <= 1


@given(leaves, st.lists(st.tuples(operators, leaves), max_size=20))
def test_a_chain_of_operators_is_read_from_left_to_right(first: Policy, others: list[tuple[str, Policy]]) -> None:
    """A chain without parentheses, however long, means the same as applying its operators one by one."""
    text, policy = format_policy(first), first
    for operator, other in others:
        text += f" {operator} {format_policy(other)}"
        policy = (union if operator in {"||", "or"} else intersection)(policy, other)
    assert same_policy(parse_policy(text), policy)


@given(policies)
def test_printed_policies_are_parsed_back(policy: Policy) -> None:
    """Printing and parsing preserve the policy up to order and nesting, and printing again changes nothing."""
    read_back = parse_policy(format_policy(policy))
    assert same_policy(read_back, policy)
    assert format_policy(read_back) == format_policy(policy)


@given(policies, ages, st.integers(0, 65_535))
def test_printed_policies_collect_the_same_cells(policy: Policy, age: timedelta, newer_versions: int) -> None:
    """The simplified form collects exactly the cells that the policy collects."""
    printed = parse_policy(format_policy(policy))
    assert collects(printed, age, newer_versions) == collects(policy, age, newer_versions)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("maxage=1d && (maxage=2d && maxage=3d)", "(maxage=3d && maxage=1d) && maxage=2d", True),
        ("(maxage=1d && maxversions=2) || maxage=3d", "maxage=3d || (maxversions=2 && maxage=24h)", True),
        ("maxage=1d", "never", False),
        ("maxage=1d || maxversions=2", "maxage=1d && maxversions=2", False),
        ("maxage=1d || maxversions=2", "maxage=1d", False),
        ("maxage=1d || (maxversions=2 && maxage=3d)", "(maxage=1d || maxversions=2) && maxage=3d", False),
    ],
)
def test_same_policy(one: str, other: str, same: bool) -> None:
    """Policies that differ only in the order or nesting of one operator's parts are equal."""
    assert same_policy(parse_policy(one), parse_policy(other)) is same


@pytest.mark.parametrize(
    ("policy", "counts"),
    [
        (Never(), False),
        (union(DAYS[1], intersection(DAYS[2], VERSIONS[2])), True),
        (union(DAYS[1], intersection(DAYS[2], DAYS[3])), False),
        (union(Never(), VERSIONS[1]), True),
        (intersection(Never(), VERSIONS[1]), False),
    ],
)
def test_whether_newer_versions_matter(policy: Policy, counts: bool) -> None:
    """A number of versions anywhere in a policy matters, unless it is combined with never."""
    assert counts_versions(policy) is counts


@given(policies, ages)
def test_keeping_one_version(policy: Policy, age: timedelta) -> None:
    """A policy of newest cells collects each cell with a newer one, whatever its age, and others as before."""
    newest = of_newest(policy)
    assert keeps_one_version(newest)
    assert of_newest(newest) == newest
    assert collects(newest, age, 1)
    assert collects(newest, age, 0) == collects(policy, age, 0)
    assert not keeps_one_version(policy) or (newest == policy and collects(policy, age, 1))


@given(policies, ages)
def test_the_newest_cell_is_collected_after_that_age(policy: Policy, age: timedelta) -> None:
    """The newest cell of a column is collected as soon as it is older than that age, and never if there is none."""
    after = collected_after(policy)
    assert collects(policy, age, 0) == (after is not None and age > after)
