"""Templates of row keys, an event, and what a scan contains."""

import re
from datetime import UTC, datetime, timedelta

from pipeline.core.events.event import Event

DEFAULT = "{sensor_id}#{reverse_us}"
PUBLISHED = [
    "{salt:2}#{sensor_id}#{reverse_ms}",
    "shard-{shard:32}#{sensor_id}#{iso_s}",
    "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}",
    "{sensor_id}#{reverse_s}",
]
TEMPLATES = [
    DEFAULT,
    *PUBLISHED,
    "v1/{sensor_id}#{reverse_us}#{event_id}",
    "{sensor_id}#{metric}#{reverse_us}",
    "{metric}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{reverse_us}#{metric}",
    "{sensor_id}#{bucket:1d}#{reverse_us}",
    "{sensor_id}#{time:%Y-%m}#{bucket:1h}#{iso_us}",
    "{metadata.location}#{metadata.model}#{sensor_id}#{iso_us}",
    "{sensor_id}#{reverse_us}#{metadata.location}",
    "{sensor_id}#{metadata.location}#{reverse_us}",
    "{iso_us}{sensor_id}",
    "{iso_us}#{sensor_id}",
    "{reverse_ms}#{metadata.location}#{sensor_id}#x#{metric}",
    "{bucket:1h}#{sensor_id}#{reverse_us}",
    "{bucket:1d}#{salt:1}{sensor_id}#{iso_us}",
    "{time:%Y-%m}#{sensor_id}#{bucket:1w}",
    "{salt:1}{shard:100}{sensor_id}#{metric}#{bucket:15m}",
    "%s{sensor_id}#%%{time:%%%Y}.*",
    "{sensor_id}#[{iso_ms}]+(.)\\d$^|?",
]


def at(*fields):
    return (datetime(*fields, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


TEN_THIRTY = at(2026, 2, 17, 10, 30, 0, 123456)
EVENT = Event("balloon-7", TEN_THIRTY, {"pressure": 94558.0}, {"location": "us-west2"}, "e-1")


def holds(key_range, key):
    return key_range.start <= key and (not key_range.end or key < key_range.end)


def scan_contains(scan, key):
    """Returns whether the scan contains the row of the key."""
    return any(holds(key_range, key) for key_range in scan.ranges) and (
        scan.pattern is None or re.fullmatch(scan.pattern, key.decode(), re.DOTALL) is not None
    )
