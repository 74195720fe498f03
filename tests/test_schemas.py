"""Holds the pages on schemas against the code: their schemas are valid, and their keys are those of the rows."""

import re
import tomllib
from pathlib import Path

import pytest

from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.toml import document_of, parse_schema
from pipeline.core.windows import parse_window

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {name: (DOCS / f"{name}.md").read_text() for name in ("schemas", "schema-reference")}
TEXTS = [
    text for page in PAGES.values() for text in re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
]


def section(page: str, title: str) -> str:
    return PAGES[page].partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_schema_of_the_pages(text):
    """It is valid, and has the settings that it writes."""
    actual = document_of(parse_schema(text))
    for key, wanted in tomllib.loads(text).items():
        assert actual[key] == (actual[key] | wanted if isinstance(wanted, dict) else wanted)


def test_every_window():
    """The table shows the key of each window's aggregate row."""
    rows = re.findall(r"^\| `(.+?)`.* \| `(.+?)` \|$", section("schema-reference", "Windows"), re.MULTILINE)
    assert len(rows) == 8
    for name, key in rows:
        window = parse_window(name)
        assert aggregate_key(window, "s1", window.start_of(parse_time("2026-03-29T10:15:00Z"))) == key.encode()


def test_every_layout():
    """The pages list and compare every layout."""
    for page, title in (("schema-reference", "Layouts"), ("schemas", "What layouts cost")):
        assert re.findall(r"^\| `(\w+)`", section(page, title), re.MULTILINE) == list(LAYOUTS)
