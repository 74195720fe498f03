"""Declared statistics on a scripted stream, with a real table."""

import random
from collections import defaultdict

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.events.event import validate
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.sketch import Sketch
from tests.job.running import PROJECT
from tests.support.courses import SCHEMA, check, stored
from tests.support.lasting import lasting
from tests.support.streams import HOUR, MINUTE, Script, event_at

MORE = '\nv = ["first", "last", "p50", "p99", "max"]\n'
FLAGS = {"allowed_lateness": "10m", "early_firing": "60s", "late_firing": "60s"}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_rows_are_those_of_all_readings(bigtable, seed):
    """Whatever the order of readings and of the watermark, in a job and in the one that follows it."""
    rng = random.Random(seed)
    schema = lasting(parse_schema(SCHEMA + MORE))
    name = TableName(PROJECT, "instance", f"statistics-{seed}")
    tables.create(name, schema)
    events, watermark = {}, 0
    for began in (None, 9 * HOUR):
        script = Script().pass_time(72 * HOUR)
        for _ in range(14):
            came = [
                event_at(
                    rng.randrange(max(watermark - 8 * HOUR, 0), watermark + HOUR) // 60 * 60,
                    float(rng.randrange(-20, 100)),
                    metric=rng.choice("tuv"),
                )
                for _ in range(rng.randrange(1, 4))
            ]
            came = [each for each in came if events.setdefault(each.event_time.seconds, each) is each]
            script.arrive(*came, *rng.sample([*events.values()], 2 if len(events) > 2 else 0))
            if rng.random() < 0.5:
                script.pass_time(rng.choice([20, 61, 25 * MINUTE]))
            if rng.random() < 0.3:
                watermark += rng.choice([5 * MINUTE, 40 * MINUTE, 3 * HOUR])
                script.watermark(watermark)
        script.run(schemas={name.table: schema}, dead_letters=[], late=[], written=True, began=began, **FLAGS)
        readings = {seconds * 1_000_000: dict(validate(each, 10**16).readings) for seconds, each in events.items()}
        rows = stored(name, schema)
        check(rows, readings)
        for (window, start_us), record in rows.items():
            values = defaultdict(list)
            for time_us, of_event in readings.items():
                if (schema.tiers[0] if window == "1h" else schema.tiers[1]).window.start_of(time_us) == start_us:
                    values[next(iter(of_event))].append(next(iter(of_event.values())))
            if values["v"]:
                assert record.metrics["v"].sketch == Sketch.of(values["v"])
