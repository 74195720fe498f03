"""Messages about a key of a TOML file tell its line."""

import tomllib

import pytest

from pipeline.core.notation.toml_lines import line_of, placed

TEXT = '''# a comment with key = 1
key = "x" # [tiers]
note = """
[tiers]
1h = "not here"
"""

[metrics]
raw = [
    "a",
    "b",
]
"in.air" = ["c"]

[tiers]
1h = "stats"
"1d@Europe/Berlin" = "days"

[rate]
metrics = 3
nested = { every = "1s", more = 2 }
[[match]]
path = "x"
'''


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        ("key: {sensor} is not a token", 2),
        ("note: it is long", 3),
        ("metrics: must be a table", 8),
        ("metrics.raw: takes a list of globs: like this", 9),
        ("metrics.in.air: is of two parts", 13),
        ("tiers: there are too many", 15),
        ("tiers.1h: takes a string", 16),
        ("tiers.1d@Europe/Berlin: takes a string", 17),
        ("rate.every: is needed", 19),
        ("rate.nested.more: takes a text", 21),
        ("match.path: it is no path", 22),
        ("metricsandmore: there is no such key", None),
        ("", None),
    ],
)
def test_the_line_of_a_key(problem: str, line: int | None) -> None:
    """Its statement, its table, or that of its first parts; not where its name stands in other text."""
    assert line_of(TEXT, problem) == line
    assert placed("a.toml", TEXT, problem) == ("a.toml" if line is None else f"a.toml:{line}")
    assert line_of(TEXT.replace("\n", "\r\n"), problem) == line


def test_the_line_of_a_syntax_error() -> None:
    """It is the one that the parser tells, if it tells one."""
    with pytest.raises(tomllib.TOMLDecodeError) as raised:
        tomllib.loads("a = 1\nb = \n")
    assert placed("a.toml", "a = 1\nb = \n", f"it is not TOML: {raised.value}") == "a.toml:2"
    assert placed("a.toml", "a = [", "it is not TOML: at the end") == "a.toml"


def test_a_large_file_is_searched_quickly() -> None:
    """A mapping may be a thousand lines long."""
    text = "".join(f"k{number} = [\n  {number},\n]\n" for number in range(1000))
    assert line_of(text, "k700: is wrong") == 2101
