import pytest

from pipeline.core.events.event import validate
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import process
from pipeline.transforms.process import Expired
from tests.support.streams import HOUR, NOON, event_at

SHORT = '[policies]\nraw = "maxage=2h || maxversions=9"\n[tiers]\n15m = "quarters"\n1h = "hours"'
NEVER = '[policies]\nraw = "never"'


class Count:
    def __init__(self, name):
        assert name == "expired_events"
        self.total = 0

    def inc(self, more):
        self.total += more


@pytest.mark.parametrize(
    ("text", "hours", "count"), [(SHORT, (-2.1, -1.9, 0), 1), (SHORT, (-1.9, 0), 0), (NEVER, (-1000,), 0)]
)
def test_expired_events_are_counted(monkeypatch, text, hours, count):
    """An event older than its family's policy counts as expired; without an age in the policy, no event does."""
    monkeypatch.setattr(process.metrics, "counter", Count)
    schema = parse_schema(text)
    events = Expired(Expiry.of(schema, schema.policies))
    events.count([validate(event_at(hour * HOUR), 10**16) for hour in hours], NOON * 1_000_000)
    assert events._events.total == count
