"""One word for one thing, and plain sentences: what a script can count of both. Each ceiling may only fall."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# CONTRIBUTING.md lists these habits, with better words.
HABITS = {
    "tell, told": (r"\b(?:tells?|told|telling)\b", 129),
    "those of": (r"\b(?:those|that) of\b|\bthose that\b", 192),
    "what as a noun": (r"\bwhat\b", 498),
    "come for arrive": (r"\b(?:comes?|came|coming)\b", 148),
    "alone for only": (r"\balone\b", 65),
    "at once": (r"\bat once\b", 36),
    "is no + noun": (r"\b(?:is|are|was|were) no\b(?! (?:longer|more|less|later|earlier|older|newer))", 48),
    "counts for wins": (r"\b(?:first|last|newest|oldest|larger|former|latter) (?:one )?counts\b", 1),
    "Of X, at the beginning": (r"(?:^|[.:;] )Of [a-z][^.]*?,", 26),
    "so many for n": (r"\bso (?:many|much)\b", 22),
    "none of, or none": (r"\bis none\b", 23),
}
NAMES = {"found": 412, "each": 377, "of_…": 247, "known": 118, "some": 37, "more": 28, "left": 40, "one": 60}


@cache
def modules():
    """Returns (path, text) of each module of the package that is not generated."""
    paths = sorted((ROOT / "pipeline").rglob("*.py"))
    return [(path, path.read_text()) for path in paths if not path.name.endswith("_pb2.py")]


def prose():
    """Yields docstrings, comments and the paragraphs of pages, without code, each in one line."""
    for _, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (docstring := ast.get_docstring(node)):
                yield docstring
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        yield from re.split(r"\n\s*\n", text)


@cache
def sentences():
    """Returns all prose, with quoted code left out."""
    return [re.sub(r"`+[^`]*`+", "`code`", " ".join(text.split())) for text in prose()]


@pytest.mark.parametrize("habit", HABITS)
def test_habits(habit):
    """A habit that makes sentences hard to read does not spread."""
    pattern, ceiling = HABITS[habit]
    count = sum(len(re.findall(pattern, text)) for text in sentences())
    assert count <= ceiling, f"{count} times; find the better word in CONTRIBUTING.md, and lower the ceiling if it fell"


@cache
def assigned():
    """Returns how often each name is assigned in the package, as a variable or an argument; ``of_…`` for all such."""
    names = Counter[str]()
    for _, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names["of_…" if node.id.startswith("of_") else node.id] += 1
            elif isinstance(node, ast.arg):
                names["of_…" if node.arg.startswith("of_") else node.arg] += 1
    return names


@pytest.mark.parametrize("name", NAMES)
def test_variables_say_what_they_hold(name):
    """Names that say nothing about the value become fewer."""
    assert assigned()[name] <= NAMES[name]


def test_no_class_differs_by_an_underscore_alone():
    """No two classes have names that an underscore makes different."""
    places = defaultdict(set)
    for path, text in modules():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].add((node.name, path.name))
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


def test_the_glossary_has_no_word_twice():
    """Each word of the glossary has one entry and one meaning."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    words = list(chain.from_iterable(re.split(r", ", row.replace("**", "")) for row in rows[1:]))
    assert [word for word, count in Counter(words).items() if count > 1] == []
