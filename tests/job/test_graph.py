"""The real graph on a scripted stream: which panes fire, what they contain, and what else is written."""

from pipeline.core.events.message import Message, message_of
from pipeline.core.statistics.window_stats import Statistics
from tests.support.streams import HOUR, MINUTE, Script, event_at, key_at

NOON_ROW = "agg#hourly#a#2026-02-17T12"


def test_late_within_lateness():
    """A late event fires a pane of the whole window, not only of itself."""
    (
        Script()
        .arrive(event_at(0, 1.0))
        .watermark(HOUR)
        .arrive(event_at(1, 2.0))
        .watermark(20 * HOUR)
        .arrive(event_at(2, 4.0))
        .run(
            aggregates=[(NOON_ROW, "1", "1"), (NOON_ROW, "2", "3"), (NOON_ROW, "3", "7")],
            allowed_lateness="1d",
        )
    )


def test_every_kind_of_pane_replaces_the_previous_one():
    """Early, on-time and late panes are written to one row, each with all events before it."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(1, 2.0))
        .pass_time(61)
        .arrive(event_at(2, 4.0))
        .watermark(HOUR)
        .arrive(event_at(3, 8.0))
        .watermark(2 * HOUR)
        .arrive(event_at(4, 16.0))
        .run(
            aggregates=[
                (NOON_ROW, count, total) for count, total in (("2", "3"), ("3", "7"), ("4", "15"), ("5", "31"))
            ],
            early_firing="60s",
            allowed_lateness="1d",
        )
    )


def test_the_message_time_does_not_matter():
    """The event time determines the window, not the timestamp of the message."""
    (
        Script()
        .watermark(30 * MINUTE)
        .arrive(event_at(-2 * HOUR, 1.0))
        .run(aggregates=[("agg#hourly#a#2026-02-17T10", "1", "1")])
    )


def test_dead_letters_beside_the_good():
    """Valid events survive next to a broken message, and in a batch with one invalid event of three."""
    no_sensor = event_at(2, 4.0, sensor_id="")
    (
        Script()
        .arrive_messages(
            Message(b"\xff", {}),
            message_of([event_at(0, 1.0), no_sensor, event_at(1, 2.0)]),
            Message(b"", {"message_type": "tidetable.v1.SensorEventBatch"}),
        )
        .run(
            raw=[key_at(0), key_at(1)],
            aggregates=[(NOON_ROW, "2", "3")],
            dead_letters=["UNPARSEABLE", "MISSING_SENSOR_ID"],
        )
    )


def test_the_clock_decides_what_is_in_the_future():
    """The graph's clock determines whether an event is too far in the future."""
    (
        Script()
        .arrive(event_at(5 * HOUR, 1.0), event_at(5 * HOUR + 0.000_001, 2.0))
        .run(raw=[key_at(5 * HOUR)], dead_letters=["EVENT_TIME_IN_FUTURE"])
    )


def test_a_window_of_too_many_metrics(monkeypatch):
    """A window with too many metrics is listed and its row kept; raw rows and other windows are written."""
    monkeypatch.setattr(Statistics, "most_metrics", 3)
    script = Script().arrive(event_at(0)).watermark(HOUR)
    for second in range(1, 5):
        script.arrive(event_at(second, metric=f"m{second}"))
    script.arrive(event_at(0, sensor_id="b")).run(
        raw=[*(key_at(second) for second in range(5)), key_at(0, "b")],
        aggregates=[*((NOON_ROW, f"{count}", "1") for count in (1, 2, 3)), ("agg#hourly#b#2026-02-17T12", "1", "1")],
        late=[NOON_ROW.replace("agg#", "repair#")] * 2,
        dead_letters=[],
    )
