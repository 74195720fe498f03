"""Documents that others wrote: their faults are a ValueError with one line."""

import ast
import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.core.notation.documents import (
    MAX_DEPTH,
    line_of,
    parse_json,
    parse_loose_json,
    parse_toml,
    placed,
    read_text,
)

# Bytes that only this project's own steps and jobs write, for themselves to read.
_OWN_BYTES = {
    "core/alerts/alert_messages.py", "core/alerts/group_alerts.py", "core/alerts/silence_clock.py",
    "transforms/alerts.py", "backfill/here.py", "backfill/run.py", "repair/report.py", "local/proof.py",
    "local/embedded/schemas.py",
    "core/statistics/member.py", "core/panes/group_state.py", "core/panes/woken_windows.py", "cli/console.py",
}  # fmt: skip


def _problem(parse, data) -> str:
    with pytest.raises(ValueError, match=r"^[^\n]{1,200}$") as caught:
        parse(data)
    return str(caught.value)


def test_nobody_else_parses() -> None:
    """What comes from outside goes through this module: no other one has parsers of its own."""
    root = Path(pipeline.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names) if any(each.name == "tomllib" for each in names):
                    found.add(str(path.relative_to(root)))
                case ast.Attribute(value=ast.Name(id="json"), attr="load" | "loads" | "JSONDecoder"):
                    found.add(str(path.relative_to(root)))
    assert found == _OWN_BYTES | {"core/notation/documents.py"}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"[" * 100_000, "it is nested more than 100 levels deep"),
        (b"[" * 101 + b"]" * 101, "it is nested more than 100 levels deep"),
        (b'{"a":[' * 60 + b"]}" * 60, "it is nested more than 100 levels deep"),
        (b"1e400", "'1e400' is beyond the range of a double"),
        (b"-1" + b"0" * 400, f"'-1{'0' * 78}…' is beyond the range of a double"),
        (b"NaN", "NaN is not a JSON number"),
        (b'{"a": 1, "a": 2}', "'a' appears twice"),
        (b'{"a": "\xff"}', "byte 8 is not text in UTF-8; save it as UTF-8"),
        ("{}".encode("utf-16"), "it is text in UTF-16; save it as UTF-8"),
        (b"\xef\xbb\xbf{}", "it begins with a byte order mark"),
        (b"", "Expecting value at character 1"),
        (b"{}\0", "Extra data at character 3"),
    ],
)
def test_json(data: bytes, problem: str) -> None:
    """The line says what is wrong with JSON."""
    assert _problem(parse_json, data) == problem


def test_infinite_json() -> None:
    """A document may be allowed numbers that are not finite; integers beyond doubles are among them."""
    assert parse_loose_json(f"[Infinity, -1e400, {'9' * 5000}]") == [float("inf"), float("-inf"), float("inf")]
    assert _problem(parse_loose_json, "[" * 200 + "]" * 200) == "it is nested more than 100 levels deep"


@given(
    st.recursive(
        st.text('[]{}"\\', max_size=4) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[{a", max_size=2), inner, max_size=3),
    ),
    st.integers(MAX_DEPTH - 5, MAX_DEPTH + 1),
    st.sampled_from(["[", "a"]),
)
def test_depth(value: object, levels: int, name: str) -> None:
    """The limit is exact, whatever brackets there are in texts."""
    for level in range(levels):
        value = [value] if level % 2 else {name: value}
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [one for each in level for one in (each.values() if isinstance(each, dict) else each)]
    text = json.dumps(value)
    if depth <= MAX_DEPTH:
        assert parse_json(text) == value
    else:
        assert _problem(parse_json, text) == "it is nested more than 100 levels deep"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (".".join(["a"] * 100_000) + " = 1", "it is nested more than 100 levels deep"),
        (f"[{'.'.join(['a'] * 101)}]", "it is nested more than 100 levels deep"),
        ("'' . \"b.\". c-d ." * 40 + "e = 1", "it is nested more than 100 levels deep"),
        (f"a = {'[' * 50_000}", "it is nested more than 100 levels deep"),
        ("".join(f"[[{'.'.join('a' * n)}]]\n" for n in range(1, 60)), "it is nested more than 100 levels deep"),
        (f"a = {'9' * 5000}", "an integer has thousands of digits"),
        (f"a = [{{ b = 0x{'f' * 5000} }}]", "an integer is beyond the range of a double"),
        ("\ufeffa = 1", "it begins with a byte order mark; save it as UTF-8 without one"),
        ("a = 1\rb = 2\r", "its lines end with CR alone; save it with LF or CR LF"),
        ("a = 1\0", "Expected newline or end of document after a statement (at line 1, column 6)"),
        ('a = "\\ud800"', "Escaped character is not a Unicode scalar value (at line 1, column 12)"),
        ("a = 1\na = 2", "Cannot overwrite a value (at end of document)"),
    ],
)
def test_toml(text: str, problem: str) -> None:
    """The line says what is wrong with TOML."""
    assert _problem(parse_toml, text) == problem


def test_what_looks_deep() -> None:
    """Dots in texts and comments, and lines of Windows, are fine."""
    text = f"# {'.' * 1000}\r\na = '{'b.' * 60}' # {'x ' * 500}\r\n"
    assert parse_toml(text) == {"a": "b." * 60}


def test_files(tmp_path: Path) -> None:
    """A file has a bound, and is no pipe that nobody writes to."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 10)
    assert read_text(path, 10) == "x" * 10
    assert _problem(lambda file: read_text(file, 9), path) == "it is larger than 9 bytes"
    assert _problem(read_text, tmp_path) == "Is a directory"
    assert _problem(read_text, tmp_path / "b") == "No such file or directory"


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
