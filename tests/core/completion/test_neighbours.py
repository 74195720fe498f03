"""The last reading before each window of a sensor."""

from pipeline.core.completion.stored_windows import Completion
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.parts import At, before_of, last_of
from tests.support.groups import HOUR, MIDNIGHT, MINUTE, event
from tests.support.memory import Memory

SCHEMA = parse_schema('[policies]\nraw = "maxage=30d"\n[statistics]\nt = ["increase", "last"]\n')


def stats_at(*times_us):
    return SCHEMA.tiers[0].statistics.stats_of(times_us, {"t": [1.0] * len(times_us)})


def test_a_window_whose_course_is_not_known():
    """Readings that were merged out of order leave none: raw rows tell the last reading, if anything does."""
    unknown, after = stats_at(MIDNIGHT), stats_at(MIDNIGHT + HOUR)
    between = stats_at(MIDNIGHT - MINUTE, MIDNIGHT + MINUTE)
    unknown.merge(between)
    assert unknown.metrics["t"].parts.keys() == {"last"}
    assert last_of(unknown.metrics["t"].parts) is None
    for stored, expected in [([], None), ([event("a", MIDNIGHT + MINUTE, {"t": 1.0})], At(MIDNIGHT + MINUTE, 1.0))]:
        table = Memory(row for each in stored for row in SCHEMA.rows(each))
        neighbours = Completion(SCHEMA, Retention.of(SCHEMA), table).neighbours
        neighbours.carry("a", {MIDNIGHT: unknown, MIDNIGHT + HOUR: after}, MIDNIGHT + 2 * HOUR)
        assert before_of(after.metrics["t"].parts) == expected
