"""The hottest tablet's share is what the literature says of each kind of row key, and what a simulation finds."""

import pytest

from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import TABLETS, hottest_share
from pipeline.plan.workload import Workload, names
from tests.plan import simulation

MINUTE = 60_000_000


def share(key, sensors=1_000_000):
    """Returns the share by arithmetic. The simulation's is as large, or larger by chance."""
    schema = parse_schema(f'key = "{key}"')
    workload = Workload(schema, sensors, MINUTE, names("metric", 1), schema.key.metadata_names)
    estimated = hottest_share(workload)
    assert 0.85 * estimated <= simulation.hottest_share(workload) < 2 * estimated
    return estimated


@pytest.mark.parametrize("time", ["{iso_us}", "{reverse_us}", "{bucket:1d}#{iso_us}"])
def test_time_first(time):
    """Keys that begin with the time write everything to one tablet."""
    assert share(f"{time}#{{sensor_id}}") == 1


@pytest.mark.parametrize("key", ["{sensor_id}#{reverse_us}", "{sensor_id}#{iso_us}"])
def test_sensor_first(key):
    """Keys that begin with the sensor spread evenly, whichever way time runs."""
    assert 1 / TABLETS <= share(key) < 2 / TABLETS


@pytest.mark.parametrize("key", ["{salt:2}#{sensor_id}#{reverse_us}", "{shard:16}#{sensor_id}#{reverse_us}"])
def test_salted_and_sharded(key):
    """Salts and shards before the sensor spread as evenly."""
    assert 1 / TABLETS <= share(key) < 2 / TABLETS


@pytest.mark.parametrize("shards", [4, 16])
def test_shards_before_the_time(shards):
    """Shards before the time divide the one hot tablet among so many."""
    assert 1 / shards <= share(f"{{shard:{shards}}}#{{iso_us}}#{{sensor_id}}") < 2 / shards


def test_few_sensors():
    """No more tablets take writes than there are sensors."""
    assert share("{sensor_id}#{reverse_us}", sensors=3) == pytest.approx(1 / 3)
