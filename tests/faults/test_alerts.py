"""Alerts agree with the readings, whatever happens to the process."""

import json
import random

import pytest

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables.alert_store import add_families, write_rules_text
from pipeline.core.alerts.alert_rows import alert_range, parse_alert_row
from pipeline.core.alerts.rules import parse_rules
from pipeline.core.events.message import sensor_event
from pipeline.core.schema.table_schema import TableSchema
from tests.faults.feed import Feed, batches, now_us
from tests.job.running import running_job
from tests.support.waiting import eventually

_RULES = (
    '[[rule]]\nname = "warm"\nmetric = "t"\nabove = 10\nclears_below = 8\n'
    '[[rule]]\nname = "lasting"\nsensors = "s[0-4]"\nmetric = "t"\nabove = 10\nfor = "30s"\n'
    '[[rule]]\nname = "silent"\nsensors = "s*"\nsilent_for = "1h"\n'
)


@pytest.mark.timeout(300)
def test_alerts_of_killed_jobs(resources, tmp_path):
    """kill -9 and a restart: once the feed is published again, what fires is what the last readings say."""
    rng, feed, schema = random.Random(5), Feed(resources), TableSchema.for_new_table()
    topic, subscription = resources.feed("alerts")
    resources.table = resources.table_of(schema)
    add_families(resources.table, schema)
    write_rules_text(resources.table, _RULES)
    flags = resources.flags(alerts_topic=topic)
    start_us = now_us() - 400_000_000
    values = {f"s{sensor}": _course(rng, start_us) for sensor in range(10)}
    events = [sensor_event(sensor, at, {"t": value}, {}) for sensor, course in values.items() for at, value in course]
    rng.shuffle(events)
    messages = list(batches(events, 7))
    share = len(messages) // 3
    for kill in range(3):
        feed.publish(messages[kill * share : (kill + 1) * share])
        with running_job(flags, tmp_path / f"{kill}.log") as job:
            eventually(resources.raw_keys)
            job.process.kill()
    feed.publish(messages)
    expected = {
        (rule.name, sensor)
        for rule in parse_rules(_RULES, "", schema)
        for sensor, course in values.items()
        if rule.condition is not None and rule.matches(sensor) and course[-1][1] > 10
    }
    assert 5 < len(expected) < 15
    told = []
    with running_job(flags, tmp_path / "last.log") as job:
        eventually(lambda: _firing(resources.table) == expected, 90)
        eventually(lambda: told.extend(resources.pull(subscription)) or told)
        assert job.stop() == 0
    assert _firing(resources.table) == expected
    told += resources.pull(subscription)
    contents = {}
    for each in told:
        content = json.loads(each.message.data)
        assert contents.setdefault(each.message.attributes["event_id"], content) == content


@pytest.mark.timeout(300)
def test_alerts_whose_messages_waited(resources, tmp_path):
    """Killed as soon as alerts fire, and nothing is published again: each has its message, which tells its row."""
    schema = TableSchema.for_new_table()
    topic, subscription = resources.feed("alerts")
    resources.table = resources.table_of(schema)
    add_families(resources.table, schema)
    write_rules_text(resources.table, _RULES)
    flags = resources.flags(alerts_topic=topic)
    sensors = {f"s{number}" for number in range(10, 20)}
    events = [sensor_event(sensor, now_us(), {"t": 11.0}, {}) for sensor in sensors]
    Feed(resources).publish(batches(events, 5))
    with running_job(flags, tmp_path / "killed.log") as job:
        eventually(lambda: _firing(resources.table))
        job.process.kill()
    told = []

    def firing():
        told.extend(json.loads(each.message.data) for each in resources.pull(subscription))
        return {each["sensor_id"] for each in told if each["rule"] == "warm" and each["kind"] == "firing"}

    with running_job(flags, tmp_path / "last.log") as job:
        eventually(lambda: firing() == sensors)
        assert job.stop() == 0
    with RowReader.open(resources.table) as reader:
        numbers = {
            (each.rule, each.sensor_id): each.last.time_us for each in map(parse_alert_row, reader.read(alert_range()))
        }
    assert {(each["rule"], each["sensor_id"]): each["number"] for each in told} == numbers


def _course(rng, start_us):
    """Returns readings of five minutes, of which those of the last minute are all beyond the limits, or within them."""
    values = [rng.choice([5.0, 9.0, 11.0, 12.0]) for _ in range(48)] + [rng.choice([5.0, 12.0])] * 12
    return [(start_us + step * 5_000_000, value) for step, value in enumerate(values)]


def _firing(table):
    return {(record.rule, record.sensor_id) for record in _records(table) if record.is_firing}


def _records(table):
    with RowReader.open(table) as reader:
        return [parse_alert_row(row) for row in reader.read(alert_range())]
