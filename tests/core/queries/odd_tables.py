"""Tables of the plainest schemas, in which another program has written a cell or a row."""

from hypothesis import strategies as st

from pipeline.core.events.event import Event
from pipeline.core.notation.cell_values import Values
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.key_template import KeyBindings, KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.table_schema import TableSchema
from tests.core.queries.feeds import SECOND_US, START_US
from tests.support.memory import Memory

KEYS = [
    "{sensor_id}#{reverse_us}",
    "{salt:2}#{sensor_id}#{reverse_us}",
    "{metadata.location}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{reverse_ms}",
]
FAMILIES = [(("raw", ("*",)),), (("temp", ("t*",)), ("raw", ("*",)))]


@st.composite
def schemas(draw):
    key = KeyTemplate.parse(draw(st.sampled_from(KEYS)))
    metrics, metadata = FamilyRules(draw(st.sampled_from(FAMILIES))), FamilyRules((("meta", ("*",)),))
    return TableSchema(key, LAYOUTS["wide"], draw(st.sampled_from(Values)), metrics, metadata, ())


VALUES = [
    b"",
    b"x",
    b"1_0",
    b" 1",
    b"nan",
    b"1e999",
    b"--1",
    b"1e",
    b"12345678",
    b"\x00" * 8,
    b"\x7f\xf0" + b"\x00" * 6,
]
doubles = st.sampled_from([0.0, -0.0, 0.1, 20.5, -1e-7, 5e-324, 1.7976931348623157e308])
metrics = st.dictionaries(st.sampled_from(["humidity", "pressure", "t"]), doubles)
FEED = st.dictionaries(st.integers(0, 2 * 3600), metrics, min_size=1, max_size=40)

KNOWN = KeyBindings("a", None, {"location": "here-1"})
KINDS = ["value", "older value", "column", "family", "longer key", "key of no time", "time out of range"]
ODD = st.none() | st.tuples(st.sampled_from(KINDS), st.sampled_from(VALUES))


def table_with(schema, feed, odd):
    """Returns a table with events by second, and a row that the schema may not write."""
    rows = []
    for second, readings in feed.items():
        metadata = {"location": "here-1", "model": f"m{second % 2}"}
        rows += schema.rows(Event("a", START_US + second * SECOND_US + 7, readings, metadata, ""))
    if odd is not None and rows:
        kind, value = odd
        row = rows[len(rows) // 2]
        time_us = row.cells[0].timestamp_us if row.cells else START_US
        family = schema.metrics.families[0]
        rows.append(
            {
                "value": Row(row.key, [Cell(family, b"t", time_us + 1000, value)]),
                "older value": Row(row.key, [Cell(family, b"t", 1000, value)]),
                "column": Row(row.key, [Cell(family, b"1 t", time_us, b"1")]),
                "family": Row(row.key, [Cell(schema.metrics.families[-1], b"t", time_us, b"2")]),
                "longer key": Row(row.key + b"0", row.cells),
                "key of no time": Row(row.key[:-1] + b"x", row.cells),
                "time out of range": Row(schema.key.prefix(KNOWN) + b"0" * 16, row.cells),
            }[kind]
        )
    return Memory(rows)
