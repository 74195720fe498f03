import gc
from collections.abc import Sequence
from datetime import timedelta

import apache_beam as beam
import pytest
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from pipeline.core.events.event import LATEST_US, Event, validate
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.panes.grouped_readings import read_group_readings, start_of_readings
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import process
from pipeline.transforms.process import ProcessMessages
from tests.support.streams import HOUR, NOON, clock, event_at, key_at, pubsub_message

HOURS = parse_schema("")
QUARTERS = parse_schema('tiers = { 15m = "quarters" }')
NO_AGGREGATES = parse_schema("[tiers]")


def run(messages, tables, *, rows, gathered, dead_letters=()):
    """Processes messages, and checks all outputs."""
    with TestPipeline(runner="FnApiRunner") as pipeline:
        step = ProcessMessages(tables, max_future=timedelta(hours=1), clock=clock)
        processed = pipeline | beam.Create([list(messages)]) | beam.FlatMap(list) | "ProcessMessages" >> step
        for index, (of_table, keys, counts) in enumerate(zip(processed.raw, rows, gathered, strict=True)):
            expected = list(zip(keys, counts or [[]] * len(keys), strict=True))
            assert_that(of_table | f"Told{index}" >> beam.Map(told), equal_to(expected), label=f"Raw{index}")
        reasons = processed.dead_letters | beam.Map(lambda letter: letter.attributes["dead_letter_reason"])
        assert_that(reasons, equal_to(list(dead_letters)), label="Dead")


def told(raw, at=beam.DoFn.TimestampParam):
    """Returns the keys of rows, and the number of readings by window and sensor."""
    return [row.key.decode() for row in raw.rows], [counted(part, at) for part in raw.readings]


def counted(part, at):
    group, time_us, part = part
    start_us = start_of_readings(part)
    assert start_us <= time_us
    assert at.micros <= time_us
    found = {readings.sensor_id: len(readings.times) for readings in read_group_readings(part)}
    assert {group_of(sensor_id.encode(), 256) for sensor_id in found} == {group}
    return (start_us // 1_000_000 - NOON) // HOUR, found


def test_rows_and_windows_of_a_bundle():
    """Rows of many messages are one element per table; readings are by group and window, at a time within it."""
    first = message_of([event_at(0), event_at(HOUR), event_at(1, sensor_id="")])
    second = message_of([event_at(2), event_at(0), event_at(3, sensor_id="b")])
    run(
        map(pubsub_message, (first, second)),
        [HOURS, NO_AGGREGATES, QUARTERS],
        rows=[[[key_at(0), key_at(HOUR), key_at(2), key_at(0), key_at(3, "b")]]] * 3,
        gathered=[
            [[(0, {"a": 3}), (1, {"a": 1}), (0, {"b": 1})]],
            None,
            [[(0, {"a": 3}), (1, {"a": 1}), (0, {"b": 1})]],
        ],
        dead_letters=["MISSING_SENSOR_ID"],
    )


def test_a_long_bundle(monkeypatch: pytest.MonkeyPatch):
    """A long bundle outputs rows now and then, each time with their readings, so its memory is bounded."""
    monkeypatch.setattr(process, "_MOST_EVENTS", 2)
    monkeypatch.setattr(process, "_MOST_MESSAGES", 1)
    run(
        [pubsub_message(message_of([event_at(i)])) for i in range(5)],
        [HOURS],
        rows=[[[key_at(i) for i in part] for part in (range(2), range(2, 4), range(4, 5))]],
        gathered=[[[(0, {"a": 2})], [(0, {"a": 2})], [(0, {"a": 1})]]],
    )


def test_newest_readings(monkeypatch: pytest.MonkeyPatch):
    """A bundle has a row of them for each sensor, however its rows are output; a very long one has several."""
    newest = parse_schema('latest = "now"')
    monkeypatch.setattr(process, "_MOST_EVENTS", 4)
    messages = [pubsub_message(message_of([event_at(i), event_at(i, sensor_id="b")])) for i in range(2)]
    rows = [[key_at(i, sensor_id) for i in range(2) for sensor_id in "ab"], ["latest#a", "latest#b"]]
    run(messages, [newest], rows=[rows], gathered=[[[(0, {"a": 2}), (0, {"b": 2})], []]])
    monkeypatch.setattr(process, "_MOST_NEWEST", 1)
    monkeypatch.setattr(process, "_MOST_MESSAGES", 1)
    rows = [key for i in range(2) for key in (key_at(i), key_at(i, "b"), "latest#a", "latest#b")]
    run(messages, [newest], rows=[[rows]], gathered=[[[(0, {"a": 2}), (0, {"b": 2})]]])


def test_messages_are_processed_together(monkeypatch: pytest.MonkeyPatch):
    """Several messages are decoded and formatted at once: when there are enough, or they are large."""
    formatted = []
    add = process._Table.add

    def counted(table: process._Table, events: Sequence[Event], now_us: int) -> int:
        formatted.append(len(events))
        return add(table, events, now_us)

    monkeypatch.setattr(process._Table, "add", counted)
    messages = [pubsub_message(message_of([event_at(i)])) for i in range(5)]
    rows = [[[key_at(i) for i in range(5)]]]
    monkeypatch.setattr(process, "_MOST_MESSAGES", 2)
    run(messages, [NO_AGGREGATES], rows=rows, gathered=[None])
    assert formatted == [2, 2, 1]
    formatted.clear()
    monkeypatch.setattr(process, "_MOST_MESSAGES", 100)
    monkeypatch.setattr(process, "_MOST_WAITING_BYTES", 2 * len(messages[0].data) + 1)
    run(messages, [NO_AGGREGATES], rows=rows, gathered=[None])
    assert formatted == [3, 2]


def test_large_rows(monkeypatch: pytest.MonkeyPatch):
    """Large rows are output sooner."""
    monkeypatch.setattr(process, "_MOST_MESSAGES", 1)
    (row,) = HOURS.encoded_rows([validate(event_at(0), LATEST_US)])
    monkeypatch.setattr(process, "_MOST_BYTES", 2 * len(row.mutations))
    run(
        [pubsub_message(message_of([event_at(i)])) for i in range(5)],
        [NO_AGGREGATES],
        rows=[[[key_at(i) for i in range(2)], [key_at(i) for i in range(2, 4)], [key_at(4)]]],
        gathered=[None],
    )


def test_large_batches(monkeypatch: pytest.MonkeyPatch):
    """The rows of one message are output in parts; event by event in a layout with a row for each metric."""
    monkeypatch.setattr(process, "_MOST_EVENTS", 3)
    monkeypatch.setattr(process, "_EVENTS_AT_ONCE", 2)
    batch = message_of([event_at(i) for i in range(7)])
    tall = parse_schema('key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"')
    for tables, parts in (
        ([HOURS], (range(4), range(4, 7))),
        ([HOURS, tall], (range(3), range(3, 6), range(6, 7))),
    ):
        run(
            [pubsub_message(batch)],
            tables,
            rows=[[[key_at(i, sensor) for i in part] for part in parts] for sensor in ("a", "a#t")[: len(tables)]],
            gathered=[[[(0, {"a": len(part)})] for part in parts]] * len(tables),
        )


@pytest.mark.parametrize(("before", "after"), [(700, 10_000), (50_000, 50_000), (0, 0)])
def test_garbage_collection_is_rare(before, after):
    """Setting up a worker makes Python look for cycles less often, unless it is told to look even less, or never."""
    thresholds = gc.get_threshold()
    table = process._Table("t", NO_AGGREGATES, None, Expiry.of(NO_AGGREGATES, {}), 0)
    step = process._ProcessFn(None, [table], clock)
    try:
        gc.set_threshold(before)
        step.setup()
        assert gc.get_threshold() == (after, *thresholds[1:])
    finally:
        gc.set_threshold(*thresholds)


def test_metadata_alone():
    """If all tables keep metadata alone, it has a raw row and is among the newest, and takes part in no window."""
    status = sensor_event("b", round((NOON + 1) * 1_000_000), {}, {"status": "on"})
    messages = [pubsub_message(message_of([event_at(0), status]))]
    keeps = parse_schema('latest = "now"\nmetadata_alone = true')
    rows = [[key_at(0), key_at(1, "b"), "latest#b", "latest#a"]]
    run(messages, [keeps], rows=[rows], gathered=[[[(0, {"a": 1})]]])
    gathered = [[[(0, {"a": 1})]]] * 2
    rows = [[[key_at(0), "latest#a"]], [[key_at(0)]]]
    run(messages, [keeps, HOURS], rows=rows, gathered=gathered, dead_letters=["NO_READINGS"])
