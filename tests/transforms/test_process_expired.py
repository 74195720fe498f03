import pytest

from pipeline.core.events.event import validate
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import process
from pipeline.transforms.process import Expired
from tests.support.streams import HOUR, NOON, event_at

SHORT = '[policies]\nraw = "maxage=2h || maxversions=9"\n[tiers]\n15m = "quarters"\n1h = "hours"'


class Count:
    def __init__(self, name):
        assert name == "expired_events"
        self.total = 0

    def inc(self, more):
        self.total += more


def expired(text):
    schema = parse_schema(text)
    return Expired(Expiry.of(schema, schema.policies))


@pytest.mark.parametrize(("schema", "hours", "count"), [(SHORT, (-2.1, -1.9, 0), 1), (SHORT, (-1.9, 0), 0)])
def test_expired_events_are_counted(monkeypatch, schema, hours, count):
    """An event older than its family's policy counts as expired."""
    monkeypatch.setattr(process.metrics, "counter", Count)
    events = expired(schema)
    events.count([validate(event_at(hour * HOUR), 10**16) for hour in hours], NOON * 1_000_000)
    assert events._events.total == count


def test_without_a_policy(monkeypatch):
    """Events of a family without an age never expire."""
    monkeypatch.setattr(process.metrics, "counter", Count)
    events = expired('[policies]\nraw = "never"')
    events.count([validate(event_at(-1000 * HOUR), 10**16)], NOON * 1_000_000)
    assert events._events.total == 0
