"""A drain soon after windows have closed, when their last panes may be on their way to the table."""

import pytest

from pipeline.core.events.event import Event
from pipeline.core.panes.firing import END_US
from pipeline.core.schema.toml import parse_schema
from tests.support.groups import DAY, HOUR, MIDNIGHT, MINUTE, Group
from tests.support.memory import Memory

FOR_EVER = parse_schema('[policies]\nraw = "never"\n[tiers]\n1h = "hours"')
FOR_A_DAY = parse_schema('[policies]\nraw = "maxage=1d"\n[tiers]\n1h = "hours"')


@pytest.mark.parametrize(("schema", "deduplicate"), [(FOR_EVER, False), (FOR_A_DAY, True)])
def test_a_pane_that_has_not_arrived(schema, deduplicate):
    """A window of statistics is not computed from raw rows that may count less than its pane: it is listed."""
    group = Group(schema, MIDNIGHT + DAY, before_us=MIDNIGHT + HOUR, deduplicate=deduplicate)
    first, second = (Event("a", MIDNIGHT + minute * MINUTE, {"t": 1.0}, {}) for minute in (5, 6))
    group.receive(first, second, stored=False)
    group.watermark(MIDNIGHT + 2 * HOUR)
    assert group.row(schema.tiers[0], "a", MIDNIGHT) == (2, 2)
    group.table = Memory(schema.rows(first))
    group.listed.clear()
    group.watermark(END_US)
    assert group.row(schema.tiers[0], "a", MIDNIGHT) is None
    assert group.listed == [("a", MIDNIGHT)]
    assert not group.chunks
