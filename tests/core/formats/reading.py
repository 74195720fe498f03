"""What the tests of the record readers share: a clock that stands still, and the two halves of what was read."""

from collections.abc import Iterable

from pipeline.core.events import Event, validate
from pipeline.core.formats.lines import Record, Refusal
from pipeline.core.formats.values import Columns, EventMaker
from pipeline.core.times import parse_time
from pipeline.proto.sensor_event_pb2 import SensorEvent

MORNING = "2026-02-17T08:00:00Z"
MORNING_US = parse_time(MORNING)
NOW_US = parse_time("2026-02-17T10:00:00Z")
LATEST_US = NOW_US + 3_600_000_000


def maker(**columns: str) -> EventMaker:
    return EventMaker(Columns(**columns), lambda: NOW_US)


def events(records: Iterable[Record]) -> list[Event]:
    return [validate(record, LATEST_US)._replace(message=None) for record in records if isinstance(record, SensorEvent)]


def refusals(records: Iterable[Record]) -> list[Refusal]:
    return [record for record in records if isinstance(record, Refusal)]
