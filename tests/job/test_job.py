"""The whole job in a process of its own, with the Pub/Sub and Bigtable emulators."""

import math
import signal
import time
from collections import Counter

import google.cloud.bigtable
import pytest
from google.protobuf import json_format

from pipeline.cloud.tables.alert_store import add_families
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.completion.work_list import BACKFILLED, listing, work_row
from pipeline.core.events.event import validate
from pipeline.core.events.message import BATCH_TYPE, Message, message_of, sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_key
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.windows import HOURLY
from pipeline.local.fleet import Fleet, simulate
from pipeline.local.proof import Expectation
from pipeline.proto.sensor_event_pb2 import SensorEventBatch
from tests.job.running import PROJECT, running_job
from tests.support.waiting import eventually

HOUR_US = 3_600_000_000


@pytest.fixture
def log(tmp_path):
    return tmp_path / "job.log"


def now_us():
    return int(time.time() * 1_000_000)


def some_event(age_us=HOUR_US, sensor_id="a", **readings):
    return sensor_event(sensor_id, now_us() - age_us, readings or {"t": 1.0}, {})


def key_of(event):
    return f"{event.sensor_id}#{9_999_999_999_999_999 - event.event_time.ToMicroseconds()}"


def published_fleet(resources):
    """Publishes a fleet for a new table; returns the messages, what must be in the table, and the letters' reasons."""
    fleet = Fleet(sensors=5, start_us=now_us() - 6 * HOUR_US, end_us=now_us(), interval_us=60_000_000, batch=15)
    published = list(simulate(fleet))
    resources.table = resources.table_of(TableSchema.for_new_table())
    resources.publish(one.message for one in published)
    expectation = Expectation((event for one in published for event in one.events), newest=True)
    return published, expectation, Counter(reason.value for one in published for reason in one.reasons)


@pytest.mark.on_both
def test_a_fleet(resources, log):
    """Every raw row, aggregate and dead letter of a fleet matches an independent computation."""
    published, expectation, reasons = published_fleet(resources)
    with running_job(resources.flags(timestamp_attribute="event_time"), log) as job:
        eventually(lambda: expectation.is_complete(resources.rows()), seconds=90)
        letters = resources.dead_letters(reasons.total())
        assert job.stop() == 0
    assert list(expectation.differences(resources.rows())) == []
    assert Counter(letter.attributes["dead_letter_reason"] for letter in letters) == reasons
    counters = job.counters()
    assert counters["messages"] == len(published)
    assert counters["events"] == counters["raw_rows"] == len(expectation.raw_rows)
    assert counters["dead_letters"] == reasons.total()
    assert sum(counters.get(f"panes_{timing}", 0) for timing in ("early", "on_time", "late")) >= len(
        expectation.aggregate_keys
    )


def test_unusual_messages(resources, log):
    """Any message that Pub/Sub delivers becomes rows, or a dead letter with its reason, attributes and payload.

    A message without the timestamp attribute is read at its publish time; its event keeps its own time.
    """
    event = some_event(t=21.5)
    huge = some_event(2 * HOUR_US, u=math.nan)
    huge.event_id = "x" * 9_900_000
    overflowing = [some_event(3 * HOUR_US + i, "huge", t=1e308) for i in range(3)]
    signed = some_event(4 * HOUR_US, "signed", t=-0.0, u=5e-324)
    half_bad = [some_event(5 * HOUR_US + i, sensor_id) for i, sensor_id in enumerate(("half", "", "half", "a#b"))]
    many = [some_event(6 * HOUR_US + i, "many") for i in range(10_000)]
    messages = {
        "good json as a dead letter carries it, without the timestamp attribute": Message(
            json_format.MessageToJson(event).encode(), {"dead_letter_googclient_schemaencoding": "JSON"}
        ),
        "overflowing": message_of(overflowing),
        "signed": message_of([signed]),
        "signed again": message_of([signed]),
        "ten thousand": message_of(many),
        "empty batch": Message(b"", {"message_type": BATCH_TYPE}),
        "half bad": message_of(half_bad),
        "ordering key": Message(b"\xff", {"case": "ordering key"}, ordering_key="north"),
        "100 attributes": Message(b"\xff", {"case": "100 attributes"} | {f"x{i:02}": "v" * 1024 for i in range(99)}),
        "near 10 MB": message_of([huge])._replace(attributes={"case": "near 10 MB"}),
        "no data": Message(b"", {"case": "no data"}),
    }
    resources.publish(messages.values())
    with running_job(resources.flags(timestamp_attribute="event_time"), log) as job:
        letters = {letter.attributes.get("case", letter.message_id): letter for letter in resources.dead_letters(6)}
        keys = {key_of(each) for each in [event, *overflowing, signed, half_bad[0], half_bad[2], *many]}
        eventually(lambda: resources.raw_keys() == keys)
        aggregate = eventually(
            lambda: next(
                (
                    row
                    for key, row in resources.rows().items()
                    if key.startswith("agg#hourly#huge#") and row["stats:count_t"] == "3"
                ),
                None,
            )
        )
        assert job.stop(signal.SIGTERM) == 0

    assert (aggregate["stats:sum_t"], aggregate["stats:avg_t"], aggregate["stats:max_t"]) == ("inf", "1e+308", "1e+308")
    rows = resources.rows()
    assert rows[key_of(signed)] == {"raw:t": "-0", "raw:u": "5e-324"}
    assert job.counters()["empty_batches"] == 1

    assert letters["ordering key"].attributes["dead_letter_ordering_key"] == "north"
    assert letters["ordering key"].ordering_key == ""
    assert letters["100 attributes"].attributes["dead_letter_reason"] == "UNPARSEABLE"
    assert "attributes left out" in letters["100 attributes"].attributes["dead_letter_detail"]
    assert len(letters["100 attributes"].attributes) == 100
    assert letters["near 10 MB"].attributes["dead_letter_reason"] == "INVALID_READING"
    assert letters["near 10 MB"].data == messages["near 10 MB"].data
    assert letters["no data"].attributes["dead_letter_reason"] == "MISSING_SENSOR_ID"
    from_batch = [letter for letter in letters.values() if "case" not in letter.attributes]
    assert {letter.attributes["event_id"] for letter in from_batch} == {
        f"{messages['half bad'].attributes['event_id']}/{index}" for index in (1, 3)
    }
    for letter in letters.values():
        assert letter.attributes["dead_letter_step"] == "ProcessMessages"
        assert letter.attributes["dead_letter_message_id"]
        assert letter.attributes["dead_letter_publish_time"]
        assert letter.attributes["dead_letter_time"]


def test_an_unparseable_timestamp_attribute(resources, log):
    """On one machine the attribute is not read, as the watermark is the clock: the event is written like any other."""
    event = some_event()
    resources.publish([message_of([event])._replace(attributes={"event_time": "yesterday"})])
    with running_job(resources.flags(timestamp_attribute="event_time"), log) as job:
        eventually(lambda: key_of(event) in resources.rows())
        assert job.stop() == 0


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
def test_a_stop_in_full_flow_loses_nothing(resources, log, signum):
    """After a stop in full flow, every event is in the table or still on the subscription, and the job says so."""
    first = now_us() - 20 * HOUR_US
    events = [sensor_event(f"s{i % 20}", first + i * 1_000_000, {"t": float(i)}, {}) for i in range(10_000)]
    keys = {key_of(event) for event in events}
    resources.publish(message_of(events[i : i + 20]) for i in range(0, len(events), 20))
    with running_job(resources.flags(), log) as job:
        eventually(resources.raw_keys)
        assert job.stop(signum) == 0
    written = resources.raw_keys()
    waiting: set[str] = set()

    def everything() -> bool:
        for received in resources.pull(resources.subscription):
            batch = SensorEventBatch.FromString(received.message.data)
            waiting.update(key_of(event) for event in batch.events)
        return written | waiting == keys

    eventually(everything)
    assert job.counters()["raw_rows"] == len(written)
    assert "stopping" in job.log
    assert "stopped; everything is written" in job.log


def test_a_stop_writes_the_panes_that_wait(resources, log):
    """Late events in quick succession share panes; a stop loses none that waits for its firing, early or late."""
    old_us = now_us() - 72 * HOUR_US
    events = [sensor_event("a", old_us + n, {"t": 1.0}, {}) for n in range(7)]
    with running_job(resources.flags(early_firing="1h", late_firing="1h"), log) as job:
        resources.publish([message_of(events[:1])])
        eventually(lambda: any(key.startswith("agg#") for key in resources.rows()))  # at the watermark
        for count, event in enumerate(events[1:], start=2):  # each late, and in a bundle of its own
            resources.publish([message_of([event])])
            eventually(lambda count=count: len(resources.raw_keys()) == count)
        resources.publish([message_of([some_event(0)])])  # early, in a window that is open
        eventually(lambda: len(resources.raw_keys()) == 8)
        assert job.stop() == 0
    counts = [row["stats:reading_count"] for key, row in resources.rows().items() if key.startswith("agg#")]
    assert sorted(counts) == ["1", "7"]
    counters = job.counters()
    assert counters["messages"] == 8
    assert sum(counters.get(f"panes_{timing}", 0) for timing in ("early", "on_time", "late")) < 8


def test_a_stop_of_a_job_that_watches(resources, log):
    """It writes the panes that wait: looks for silent sensors end with a stop."""
    schema = TableSchema.for_new_table()
    resources.table = resources.table_of(schema)
    add_families(resources.table, schema)
    topic, _ = resources.feed("alerts")
    with running_job(resources.flags(early_firing="1h", alerts_topic=topic), log) as job:
        resources.publish([message_of([some_event(0)])])
        eventually(resources.raw_keys)
        assert job.stop() == 0
    assert "stopped; everything is written" in job.log
    assert any(key.startswith("agg#") for key in resources.rows())


def test_windows_that_a_backfill_listed(resources, log):
    """The job counts what is in the table for such a window, and its looks end with a stop."""
    resources.table = resources.table_of(TableSchema.for_new_table())
    schema, backfilled = TableSchema.for_new_table(), some_event()
    event = validate(backfilled, now_us())
    rows = [*schema.rows(event), work_row(schema.tiers[0], "a", event.event_time_us, listing(BACKFILLED, now_us()))]
    with Rewriter.open(resources.table) as rewriter:
        rewriter.add(rows)
    with running_job(resources.flags(), log) as job:
        eventually(lambda: any(key.startswith("agg#hourly#a#") for key in resources.rows()))
        assert job.stop() == 0
    assert job.counters()["windows_woken"] >= 1


def test_a_family_deleted_under_the_job(resources, log):
    """Rows that Bigtable refuses permanently end the job with their count, the cause and a remedy; none is dropped."""
    with running_job(resources.flags(), log) as job:
        resources.publish([message_of([some_event()])])
        eventually(lambda: any(key.startswith("agg#") for key in resources.rows()))
        admin = google.cloud.bigtable.Client(project=PROJECT, admin=True)
        admin.instance("instance").table(resources.table.table).column_family("raw").delete()
        lost = [some_event(2 * HOUR_US + i, "b") for i in range(3)]
        resources.publish([message_of(lost)])
        assert job.process.wait(60) == 1
    declared = next(line for line in job.log.splitlines() if "the job failed" in line)
    assert f"table {resources.table}: 3 rows could not be written: " in declared
    assert f"tidetable: table {resources.table} has no family raw" in job.log
    assert "add the missing families with: tidetable table apply" in job.log


def test_rows_that_bigtable_refuses_for_good(resources, log):
    """The bulk writer writes a fleet as the connector does. Rows that Bigtable refuses for good become dead letters,
    their events count in no window, and the job continues.
    """
    _, expectation, reasons = published_fleet(resources)
    with running_job(resources.flags(timestamp_attribute="event_time", bigtable_writer="bulk"), log) as job:
        eventually(lambda: expectation.is_complete(resources.rows()), seconds=90)
        letters = resources.dead_letters(reasons.total())
        assert Counter(letter.attributes["dead_letter_reason"] for letter in letters) == reasons
        assert list(expectation.differences(resources.rows())) == []
        admin = google.cloud.bigtable.Client(project=PROJECT, admin=True)
        admin.instance("instance").table(resources.table.table).column_family("meta").delete()
        homeless = some_event(2 * HOUR_US, "b")
        homeless.metadata["place"] = "north"
        good = some_event(2 * HOUR_US, "c")
        resources.publish([message_of([homeless, good])])
        (letter,) = resources.dead_letters(1)
        eventually(lambda: key_of(good) in resources.rows())
        assert job.stop() == 0
    hours = {event.sensor_id: event.event_time.ToMicroseconds() for event in (homeless, good)}
    windows = {each: aggregate_key(HOURLY, each, HOURLY.start_of(time_us)).decode() for each, time_us in hours.items()}
    assert windows["c"] in resources.rows()
    assert windows["b"] not in resources.rows()
    assert not [key for key in resources.rows() if key.startswith("repair#")]
    assert letter.attributes["dead_letter_reason"] == "ROW_REFUSED"
    assert letter.attributes["row_key"] == key_of(homeless)
    counters = job.counters()
    assert [counters[name] for name in ("bulk_refused", "dead_letters_ROW_REFUSED")] == [1, 1]
    assert counters["dead_letters"] == reasons.total() + 1
