"""The arithmetic of sizes agrees with messages and rows that the real code makes."""

import pytest

from pipeline.core.schema.toml import parse_schema
from pipeline.plan.workload import Workload, names
from tests.plan.simulation import simulate

SECOND = 1_000_000
SCHEMAS = {
    "wide": 'latest = "newest"',
    "tall": 'key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"',
    "serialized": 'key = "{salt:2}#{sensor_id}#{reverse_ms}"\nlayout = "serialized"',
    "bucket_cells": 'key = "{sensor_id}#{bucket:1h}"\nlayout = "bucket_cells"\nvalues = "float64"\n'
    '[tiers]\n1h = "h"\n1d = "d"\n"1mo@Europe/Berlin" = "m"',
    "bucket_columns": 'key = "{shard:7}#{sensor_id}#{metric}#{bucket:1h}"\nlayout = "bucket_columns"',
    "bucket_serialized": 'key = "{metadata.place}#{sensor_id}#{bucket:1h}"\nlayout = "bucket_serialized"',
    "event_id": 'key = "{sensor_id}#{iso_ms}#{event_id}"',
    "statistics": '[statistics]\nother = ["first", "last", "p50", "p95", "increase", "rate", "time_weighted_mean"]',
}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *(pytest.param(name, 60, marks=pytest.mark.exhaustive if n % 2 else ()) for n, name in enumerate(SCHEMAS)),
        ("statistics", 1),
        ("bucket_cells", 1),
        ("wide", 7200),
    ],
)
def test_sizes_of_every_layout(name, seconds):
    """No size is more than 5 % off, in any layout, with any tiers and statistics, and at any rate."""
    schema = parse_schema(SCHEMAS[name])
    metadata = names("field", 2) + schema.key.metadata_names
    checks = simulate(Workload(schema, 1_000_000, seconds * SECOND, names("metric", 4), metadata, batch=20))
    assert [each for each in checks if each.deviates] == []
    assert len(checks) >= 9
