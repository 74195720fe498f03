"""What is known to be missing of an answer."""

from datetime import timedelta
from time import time_ns

import pytest

from pipeline.core.answers.window_answers import WindowQuery, incomplete_before
from pipeline.core.schema.gc_policies import MaxAge, Never
from pipeline.core.schema.retention import FOR_EVER_US, Retention
from pipeline.core.schema.toml import parse_schema

MINUTE, HOUR = 60_000_000, 3_600_000_000
NOW = time_ns() // 1000
END = NOW - NOW % HOUR
SCHEMA = parse_schema("")
KEPT = Never()


@pytest.mark.parametrize(
    ("retention", "fresh", "expected"),
    [
        (Retention.of(SCHEMA, {"stats": KEPT}), False, None),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": END - 2 * HOUR}), False, END - 2 * HOUR),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": END - 20 * HOUR}), False, None),
        (Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": FOR_EVER_US}), False, END + HOUR),
        (Retention.of(SCHEMA, {"stats": KEPT}, since={"stats": END - 2 * HOUR}), False, END - 2 * HOUR),
        (Retention.unknown(SCHEMA), True, END + HOUR),
    ],
)
def test_windows_before_this_time_may_be_missing(retention, fresh, expected):
    """The tier was added later, or its policy was shorter; nothing is certain of a table that was not asked."""
    query = WindowQuery(None, END - 10 * HOUR, END + HOUR, fresh=fresh)
    assert incomplete_before(SCHEMA, retention, query) == expected


def test_the_policy_of_a_tier():
    """Rows that the policy may have collected by now may be missing, but for some minutes by which clocks differ."""
    retention = Retention.of(SCHEMA, {"stats": MaxAge(timedelta(hours=5))})
    now_us = time_ns() // 1000
    found = incomplete_before(SCHEMA, retention, WindowQuery(None, END - 10 * HOUR, END))
    assert now_us <= found + 5 * HOUR - 10 * MINUTE < now_us + 10 * MINUTE


def test_an_open_window_of_a_fresh_answer():
    """Raw rows answer for it, whether or not a job has written the tier, if they are kept."""
    never = Retention.of(SCHEMA, {"stats": KEPT}, added={"stats": FOR_EVER_US})
    query = WindowQuery(None, END - 10 * HOUR, END + HOUR, fresh=True)
    assert incomplete_before(SCHEMA, never, query) in (END - HOUR, END)
    assert incomplete_before(SCHEMA, never, query._replace(start_us=END)) in (None, END)
    gone = Retention.of(SCHEMA, {"raw": MaxAge(timedelta(minutes=1))}, added={"stats": FOR_EVER_US})
    assert incomplete_before(SCHEMA, gone, query) > END
