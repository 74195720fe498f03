"""Tests of rules: what is accepted, and the line for what is not."""

from dataclasses import replace

import pytest

from pipeline.core.alerts.rules import BETWEEN, CLEARS, FIRES, MAX_RULES, RulesError, condition_of, parse_rules
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.table_schema import TableSchema

_SCHEMA = TableSchema.for_new_table()

_FREEZER = """
[[rule]]
name = "freezer-warm"
sensors = "freezer-*"
metric = "temperature"
above = -15
clears_below = -17
for = "10m"
severity = "page"
"""


def _problems(text: str, schema: TableSchema = _SCHEMA) -> list[str]:
    with pytest.raises(RulesError) as raised:
        parse_rules(text, "rules.toml", schema)
    assert all(problem.isprintable() and len(problem) < 400 for problem in raised.value.problems)
    return raised.value.problems


def _warm(more: str = "", above: str = "above = 1") -> str:
    return f'[[rule]]\nname = "warm"\nmetric = "temperature"\n{above}\n{more}\n'


_OF_RATE = replace(_SCHEMA, rate=Rate(60_000_000))
_MEAN = 'of = "avg"\ntier = "1h"\n'


def test_rules() -> None:
    """Rules on readings, on windows and on silence say in a few words when they fire."""
    text = _FREEZER + '[[rule]]\nname = "mean"\nmetric = "t"\nof = "avg"\ntier = "60m"\nbelow = 30\n'
    text += '[[rule]]\nname = "silent"\nmetadata = { site = "north" }\nsilent_for = "30m"\n'
    freezer, mean, silent = parse_rules(text, "rules.toml", _SCHEMA)
    assert freezer.matches("freezer-1")
    assert not freezer.matches("fridge-1")
    assert freezer.summary == "temperature above -15 for 10m"
    assert mean.summary == "avg of t in 1h below 30"
    assert silent.summary == "silent for 30m"
    assert silent.fits({"site": "north", "floor": "2"})
    assert not silent.fits({"site": "south"})


def test_conditions_in_words() -> None:
    """Each kind of rule says what it looks at."""
    text = _warm('sensors = ["b", "a", "a"]\nrate_of_change = "minute"\nfor = "1m"')
    text += _warm(f"{_MEAN}min_count = 3\nmin_coverage = 0.75").replace("warm", "mean")
    text += _warm(above='unchanged_for = "2h"').replace("warm", "still")
    rate, mean, still = parse_rules(text, "", _OF_RATE)
    assert rate.expected == ("a", "b")
    assert rate.matches("a")
    assert not rate.matches("c")
    assert rate.summary == "change of temperature per minute above 1 for 1m"
    assert mean.summary == "avg of temperature in 1h above 1 with at least 3 readings and coverage of at least 0.75"
    assert still.summary == "temperature does not move for 2h"


@pytest.mark.parametrize(
    ("text", "at", "end"),
    [
        ("22:00-06:00", "21:59", None),
        ("22:00-06:00", "22:00", "06:00"),
        ("22:00-06:00", "05:59", "06:00"),
        ("22:00-06:00", "06:00", None),
        ("09:30-10:00@Asia/Kolkata", "04:15", "04:30"),
        ("00:00-00:00", "12:00", "00:00"),
    ],
)
def test_quiet_hours(text: str, at: str, end: str | None) -> None:
    """They begin and end at a minute of a zone's day, perhaps the next one."""
    (rule,) = parse_rules(_warm(f'quiet = ["{text}"]'), "", _SCHEMA)
    until_us = rule.quiet_until_us(parse_time(f"2026-02-17T{at}:30Z"))
    assert (until_us and format_time(until_us)[11:16]) == end


def test_a_severity_is_no_revision() -> None:
    """A rule is another one if it fires for anything else, and not if its severity or its quiet hours change."""
    (one,) = parse_rules(_FREEZER, "", _SCHEMA)
    ticket = '"ticket"\nquiet = ["22:00-06:00"]'
    (other,) = parse_rules(_FREEZER.replace('"page"', ticket), "", _SCHEMA)
    (warmer,) = parse_rules(_FREEZER.replace("-15", "-14"), "", _SCHEMA)
    assert one.revision == other.revision != warmer.revision


@pytest.mark.parametrize(
    ("keys", "classes"),
    [
        ({"above": 3}, [CLEARS, CLEARS, FIRES, FIRES]),
        ({"above": 4, "clears_below": 3}, [CLEARS, BETWEEN, BETWEEN, FIRES]),
        ({"below": 3}, [FIRES, CLEARS, CLEARS, CLEARS]),
        ({"below": 3, "clears_above": 4}, [FIRES, BETWEEN, BETWEEN, CLEARS]),
        ({"outside": [3, 4]}, [FIRES, CLEARS, CLEARS, FIRES]),
        ({"outside": [3, 5], "clears_inside": [4, 5]}, [FIRES, BETWEEN, CLEARS, CLEARS]),
        ({"inside": [3, 4]}, [CLEARS, FIRES, FIRES, CLEARS]),
        ({"inside": [3, 4], "clears_outside": [2, 4]}, [BETWEEN, FIRES, FIRES, CLEARS]),
    ],
)
def test_classes_of_values(keys: dict[str, object], classes: list[int]) -> None:
    """Limits themselves do not fire, and between two limits an alert stays as it is."""
    condition = condition_of(keys)
    assert [condition.classify(value) for value in (2, 3, 4, 5)] == classes
    low, high = condition.calm
    assert not any(low <= value <= high and condition.classify(value) == FIRES for value in (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rule = 1", "rules begin with [[rule]]"),
        ("[[rules]]", "there is no key 'rules'; rules begin with [[rule]]"),
        ("[[rule", "is not TOML"),
        ("[[rule]]\nname = 3", "rule 1: name takes a text like"),
        ('[[rule]]\nname = "a#b"', "rule 1: name takes a text like"),
        ('[[rule]]\nname = "a"', "rule a: needs metric, or silent_for"),
        (_warm("abvoe = 2"), "rule warm: there is no key 'abvoe'; the keys are name,"),
        (_warm("below = 0"), "rule warm: needs one of above, below, outside, inside, and has above and below"),
        (_warm(above=""), "and has none"),
        (_warm("clears_above = 2"), "clears_above does not go with above; above clears by clears_below"),
        (_warm("clears_below = 2"), "clears_below has to be at or below above"),
        (_warm(above="outside = [3, 2]"), "outside has its limits in the wrong order; write [2, 3]"),
        (_warm(above="outside = 3"), "outside takes two numbers"),
        (_warm(above="above = nan"), "above takes a number"),
        (_warm(above="above = true"), "above takes a number"),
        (_warm(above=f"above = 1{'0' * 400}"), "is not TOML: an integer is beyond the range of a double"),
        (_warm(above=f"above = {'9' * 5000}"), "is not TOML: an integer has thousands of digits"),
        (
            _warm(above=f"above = [0x{'f' * 5000}]"),
            "is not TOML: an integer is beyond the range of a double",
        ),
        ('"a\\nb" = 1', r"there is no key 'a\nb'; rules begin with [[rule]]"),
        (_warm(f"{'k' * 50_000} = 1"), "rule warm: there is no key 'kkk"),
        (_warm(f'for = "{"9" * 50_000}d"'), "rule warm: for: '999"),
        (_warm(f'of = "{"a" * 50_000}"\ntier = "1h"'), "rule warm: of takes a text like"),
        (_warm('of = "avg"\ntier = "1\\u001bh"'), "rule warm: tier takes a text like"),
        (_warm('for = "soon"'), "rule warm: for: 'soon' is not a duration"),
        (_warm("for = 10"), "for takes a duration"),
        (_warm('of = "avg"'), "of and tier go together"),
        (_warm('of = "mean"\ntier = "1h"'), "'mean' is not a statistic"),
        (_warm('of = "p95"\ntier = "1h"'), "the table does not store p95 of temperature; its schema declares"),
        (_warm('of = "avg"\ntier = "5m"'), "the table has no tier 5m; its tiers are 1h"),
        (_warm('silent_for = "5m"'), "metric does not go with silent_for"),
        ('[[rule]]\nname = "s"\nsilent_for = "5s"', "silent_for takes 1m to 365d, not 5s"),
        (_warm("metadata = { site = 3 }"), "metadata takes names and texts"),
        (_warm('metadata = { "a b" = "c" }'), "is not a name of a metric or of metadata"),
        (_warm('sensors = ""'), "sensors takes a text"),
        (_warm("sensors = []"), "sensors takes a glob"),
        (_warm('sensors = ["a#b"]'), "rule warm: "),
        (_warm('sensors_file = "a.txt"'), "sensors_file names a file that only alerts apply reads"),
        (_warm('unchanged_for = "2h"'), "above does not go with unchanged_for"),
        (_warm("tolerance = 1"), "tolerance does not go with a limit; it belongs to unchanged_for"),
        (_warm(above='unchanged_for = "2h"\ntolerance = -1'), "tolerance takes a number from 0"),
        (_warm('rate_of_change = "day"'), 'rate_of_change takes "minute" or "hour", not'),
        (_warm('rate_of_change = ["hour"]'), 'rate_of_change takes "minute" or "hour", not'),
        (_warm(f'rate_of_change = "hour"\n{_MEAN}'), "of does not go with rate_of_change"),
        (_warm("min_count = 3"), "min_count does not go with readings; it belongs to a rule with of and tier"),
        (_warm(f"{_MEAN}min_count = 3.5"), "min_count takes a whole number from 0"),
        (_warm(f"{_MEAN}min_coverage = 75"), "min_coverage takes a share from 0 to 1, not 75"),
        (_warm(f"{_MEAN}min_coverage = 0.75"), "min_coverage needs the rate that sensors are to have"),
        (_warm('quiet = ["22-6"]'), 'quiet takes times like ["22:00-06:00@Europe/Berlin"]'),
        (_warm('quiet = ["22:00-06:00@Berlin"]'), "did you mean Europe/Berlin"),
        (_warm('severity = "page"\nquiet = ["22:00-06:00"]'), "which never waits"),
        (_warm() * 2, "rule warm: 2 rules have this name"),
    ],
)
def test_bad_rules(text: str, problem: str) -> None:
    """A rule that is not valid has one line, which names the file, the rule and the problem."""
    (found,) = _problems(text)
    assert found.startswith("rules.toml: ")
    assert problem in found


def test_each_bad_rule_has_a_line() -> None:
    """Two rules that are not valid have two lines."""
    assert len(_problems(_warm("a = 1") + _warm("b = 1"))) == 2


def test_too_many_rules() -> None:
    """A table has a hundred rules at most."""
    rules = "".join(_warm().replace("warm", f"warm-{number}") for number in range(MAX_RULES + 1))
    assert _problems(rules) == ["rules.toml: has 101 rules, and a table has 100 at most"]
    assert _problems("[[rule]]\n" * 9000) == ["rules.toml: has 9000 rules, and a table has 100 at most"]


def test_silence_needs_newest_readings() -> None:
    """Silence is known by the rows of newest readings, so a table without them has no such rule."""
    (problem,) = _problems('[[rule]]\nname = "s"\nsilent_for = "5m"', TableSchema.default())
    assert "needs rows of newest readings" in problem
