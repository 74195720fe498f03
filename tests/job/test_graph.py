"""The real graph on a scripted stream: which panes fire, what they contain, and what else is written."""

from pipeline.core.events.message import Message
from pipeline.core.events.publishing import message_of
from pipeline.core.statistics.rules import Statistics
from tests.support.streams import HOUR, MINUTE, Script, event_at, key_at

NOON_ROW = "agg#hourly#a#2026-02-17T12"


def test_on_time():
    """Events before the watermark are one pane, written when the watermark passes the window's end."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(MINUTE, 2.0))
        .watermark(HOUR)
        .run(raw=[key_at(0), key_at(MINUTE)], aggregates=[(NOON_ROW, "2", "3")], dead_letters=[])
    )


def test_early():
    """An early pane fires after the interval with the events so far; the on-time pane contains all events."""
    (
        Script()
        .arrive(event_at(0, 1.0))
        .arrive(event_at(1, 2.0))
        .pass_time(61)
        .arrive(event_at(2, 4.0))
        .watermark(HOUR)
        .run(aggregates=[(NOON_ROW, "2", "3"), (NOON_ROW, "3", "7")], early_firing="60s")
    )


def test_rows_of_an_hour():
    """An hour's row is written once per early interval and once per late event, on time only if that adds something."""
    script = Script()
    for minute in range(60):
        script.watermark(minute * MINUTE).arrive(event_at(minute * MINUTE)).pass_time(MINUTE)
    # The group's own times, ten minutes apart, and the end of the hour.
    early = [(NOON_ROW, f"{count}", f"{count}") for count in (4, 14, 23, 33, 42, 52, 60)]
    late = [(NOON_ROW, f"{count}", f"{count}") for count in (61, 62)]
    (script.watermark(HOUR).arrive(event_at(1)).arrive(event_at(2)).run(aggregates=[*early, *late], early_firing="10m"))


def test_no_early_panes():
    """With --early_firing=0 no pane is written before the window's end."""
    (
        Script()
        .arrive(event_at(0, 1.0))
        .pass_time(3600)
        .arrive(event_at(1, 2.0))
        .watermark(HOUR)
        .run(aggregates=[(NOON_ROW, "2", "3")], early_firing="0")
    )


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


def test_late_panes_at_intervals():
    """Late events within an interval make one pane, at the next of the group's own times."""
    (
        Script()
        .arrive(event_at(0, 1.0))
        .watermark(HOUR)
        .arrive(event_at(1, 2.0))
        .pass_time(30)
        .arrive(event_at(2, 4.0))
        .pass_time(31)
        .arrive(event_at(3, 8.0))
        .run(aggregates=[(NOON_ROW, "1", "1"), (NOON_ROW, "2", "3"), (NOON_ROW, "4", "15")], late_firing="60s")
    )


def test_only_sensors_with_something_new():
    """A pane writes only the sensors of a group that sent something since its last pane."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(0, 2.0, "b"))
        .pass_time(61)
        .arrive(event_at(1, 4.0), event_at(0, 2.0, "b"))
        .pass_time(61)
        .run(
            aggregates=[(NOON_ROW, "1", "1"), ("agg#hourly#b#2026-02-17T12", "1", "2"), (NOON_ROW, "2", "5")],
            early_firing="60s",
        )
    )


def test_two_sensors():
    """Every sensor has its own rows, even if its id begins with another's."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(0, 2.0, "ab"), event_at(1, 4.0))
        .watermark(HOUR)
        .run(
            raw=[key_at(0), key_at(0, "ab"), key_at(1)],
            aggregates=[(NOON_ROW, "2", "5"), ("agg#hourly#ab#2026-02-17T12", "1", "2")],
        )
    )


def test_window_edges():
    """A window contains its first microsecond, and not the first one of the next window."""
    (
        Script()
        .arrive(event_at(-0.000_001, 1.0), event_at(0, 2.0), event_at(HOUR - 0.000_001, 4.0), event_at(HOUR, 8.0))
        .run(
            aggregates=[
                ("agg#hourly#a#2026-02-17T11", "1", "1"),
                (NOON_ROW, "2", "6"),
                ("agg#hourly#a#2026-02-17T13", "1", "8"),
            ]
        )
    )


def test_other_windows():
    """The keys of windows of another length have another format."""
    (
        Script()
        .arrive(event_at(0, 1.0), event_at(20 * MINUTE, 2.0))
        .run(
            aggregates=[("agg#15m#a#2026-02-17T12:00:00", "1", "1"), ("agg#15m#a#2026-02-17T12:15:00", "1", "2")],
            window="15m",
        )
    )


def test_window_of_a_day():
    """A day's window is the UTC day."""
    (
        Script()
        .arrive(event_at(-12 * HOUR, 1.0), event_at(3 * HOUR, 2.0))
        .run(aggregates=[("agg#daily#a#2026-02-17", "2", "3")], window="1d")
    )


def test_the_message_time_does_not_matter():
    """The event time determines the window, not the timestamp of the message."""
    (
        Script()
        .watermark(30 * MINUTE)
        .arrive(event_at(-2 * HOUR, 1.0))
        .run(aggregates=[("agg#hourly#a#2026-02-17T10", "1", "1")])
    )


def test_the_same_event_twice():
    """The same event in two messages is one raw row, written twice, and counts once, whenever it arrives."""
    (
        Script()
        .arrive(event_at(0), event_at(0))
        .arrive(event_at(0), event_at(1))
        .watermark(HOUR)
        .arrive(event_at(0))
        .run(raw=[key_at(0)] * 4 + [key_at(1)], aggregates=[(NOON_ROW, "2", "2")])
    )


def test_more_readings_of_an_event():
    """A second message with other metrics of an event belongs to the same event."""
    first, second = event_at(0, 3.0), event_at(0, 5.0, metric="u")
    Script().arrive(first, second, first).run(raw=[key_at(0)] * 3, aggregates=[(NOON_ROW, "1", "3")])


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
