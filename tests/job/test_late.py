"""Late events on a scripted stream, with a real table: windows are computed anew from their raw rows."""

import random
from collections import Counter

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.core.events.event import validate
from pipeline.core.queries.seeks import RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.toml import parse_schema
from tests.job.running import PROJECT
from tests.support.lasting import lasting
from tests.support.streams import HOUR, MINUTE, Script, event_at

DAYS = lasting(parse_schema('[tiers]\n1h = "hours"\n1d = "days"'))
QUARTERS = lasting(parse_schema('layout = "serialized"\n[tiers]\n15m = "quarters"\n1h = "hours"'))
FLAGS = {"allowed_lateness": "10m", "early_firing": "60s", "late_firing": "60s"}


@pytest.fixture
def schemas(bigtable, request):
    """Two tables that no other test uses, with different tiers."""
    name = f"t{abs(hash(request.node.nodeid))}"
    found = {name: DAYS, f"{name}x": QUARTERS}
    for table, schema in found.items():
        tables.create(TableName(PROJECT, "instance", table), schema)
    return found


def stored(table, tier):
    """Returns the number of events and the sum of ``t`` in each of a tier's aggregate rows, by sensor and start."""
    found = {}
    with RowReader.open(TableName(PROJECT, "instance", table)) as reader:
        for sensor in "ab":
            keys = aggregate_range(tier.window, sensor, 0, 1 << 52)
            for row in reader.read_selection(RowSelection(keys, CellSelection((tier.family,), versions=1))):
                record = parse_aggregate_row(tier.window, row)
                found[sensor, record.start_us] = record.reading_count, record.metrics["t"].sum
    return found


def assert_exact(schemas, events):
    """Asserts that the rows of every tier are the statistics of these events, each taken once."""
    valid = {(each.sensor_id, each.event_time_us): each for each in (validate(event, 10**16) for event in events)}
    for table, schema in schemas.items():
        for tier in schema.tiers:
            counts, sums = Counter(), Counter()
            for (sensor, time_us), event in valid.items():
                window = sensor, tier.window.start_of(time_us)
                counts[window] += 1
                sums[window] += event.readings["t"]
            assert stored(table, tier) == {window: (counts[window], sums[window]) for window in counts}


def minutes(first, last, step=5, sensor_id="a", value=1.0):
    """Returns events every few minutes, from so many minutes after noon."""
    return [event_at(minute * MINUTE, value, sensor_id) for minute in range(first, last, step)]


def test_a_backlog_after_an_outage(schemas):
    """After hours without messages, the backlog comes before the watermark moves, or after it, or both.

    The watermark lags behind the events of the backlog, so that windows are open in which panes have still to fire;
    late events of closed windows come in between. No row of either table and of any tier ever counts less than before.
    """
    before = minutes(-60, 0)
    backlog = minutes(0, 180)  # the outage
    late = minutes(-59, -30), minutes(-29, 0), minutes(1, 60), minutes(62, 180, 15)
    other = minutes(-60, 240, 15, sensor_id="b", value=2.0)
    script = Script().watermark(-HOUR).arrive(*before[:6]).pass_time(61)
    script.watermark(5 * MINUTE).arrive(*before[6:], *late[0])  # the hour before noon is over, but still open
    script.watermark(15 * MINUTE).arrive(*late[1]).pass_time(61)  # it is closed
    script.pass_time(3 * HOUR)
    script.arrive(*backlog[::2], *other).pass_time(30).arrive(*late[1][:2])
    script.watermark(65 * MINUTE).arrive(*late[2][:4]).pass_time(61)  # the first hour of the outage is over
    script.watermark(75 * MINUTE).arrive(*late[2], *backlog[1::2]).pass_time(61)  # it is closed
    script.watermark(4 * HOUR).arrive(*late[3]).pass_time(61)
    script.run(schemas=schemas, dead_letters=[], late=[], written=True, **FLAGS)
    assert_exact(schemas, [*before, *backlog, *other, *(each for part in late for each in part)])


@pytest.mark.parametrize("seed", range(2))
def test_any_order(schemas, seed):
    """Panes of open windows and of late ones, in whatever order, and with repetitions: counts never decrease."""
    rng = random.Random(seed)
    script, events, watermark = Script().pass_time(48 * HOUR), [], 0
    for step in range(16):
        came = [
            event_at(rng.randrange(max(watermark - 8 * HOUR, 0), watermark + HOUR), rng.choice([1.0, 2.5]), sensor)
            for sensor in rng.choices("ab", k=rng.randrange(1, 4))
        ]
        known = {(each.sensor_id, each.event_time.seconds) for each in events}
        came = [each for each in came if (each.sensor_id, each.event_time.seconds) not in known]
        again = rng.sample(events, min(len(events), 2))
        script.arrive(*came, *again)
        events += came
        if rng.random() < 0.5:
            script.pass_time(rng.choice([20, 61, 25 * MINUTE]))
        if rng.random() < 0.3 or step == 8:
            watermark += rng.choice([5 * MINUTE, 40 * MINUTE, 3 * HOUR])
            script.watermark(watermark)
    script.run(schemas=schemas, dead_letters=[], late=[], written=True, **FLAGS)
    assert_exact(schemas, events)
