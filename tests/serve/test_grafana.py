"""The queries of the page on Grafana, asked as its data source asks them."""

import re
from pathlib import Path

import pytest

from pipeline.core.notation.times import format_time
from tests.serve.serving import EVENTS, HOUR, START, get, serving, table_of

PAGE = Path(__file__).parents[2] / "docs" / "grafana.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and "/api/v1/" in line
]
VARIABLES = {
    "${sensor}": "hall-1",
    "${metric}": "t",
    "${__from:date:iso}": format_time(START).replace("Z", ".000Z"),  # as Grafana writes times
    "${__to:date:iso}": format_time(START + 4 * HOUR).replace("Z", ".000Z"),
}


@pytest.fixture(scope="module")
def address(bigtable):
    with serving(table_of(EVENTS)) as found:
        yield found


def filled(text):
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


def selected(record, path):
    """Returns a field by a path of names, as the data source selects columns."""
    for name in path.split("."):
        record = record[name]
    return record


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_query(address, row):
    """Each query of the page answers with the records and columns that the page names."""
    url, root, columns = (re.findall(r"`([^`]+)`", cell) for cell in row[1:])
    answer = get(address + filled(url[0]))
    assert answer.status == 200, answer.body
    records = answer.json[root[0]]
    assert records
    assert answer.json.get("next") is None
    for column in columns:
        for record in records:
            if "readings." not in column or record["sensor_id"] != "old" or "t" in record["readings"]:
                assert isinstance(selected(record, filled(column)), str | int | float)


def test_every_kind_of_query_is_on_the_page():
    """The page has seven queries."""
    assert len(ROWS) == 7
