import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from pipeline.core.events.event import EARLIEST_US, Event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from pipeline.formats.values import (
    BadValue,
    EventMaker,
    FileColumns,
    InvalidEvent,
    Malformed,
    check_encoding,
    parse_number,
)
from tests.formats.reading import LATEST_US, MORNING, MORNING_US, events, maker


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("+1.5", 1.5),
        ("1e308", 1e308),
        ("5e-324", 5e-324),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
        ("1e309", None),
        ("inf", None),
        ("-Infinity", None),
        ("nan", None),
        ("1_000", None),
        ("0x10", None),
        ("١٢", None),
    ],
)
def test_only_numbers_that_any_language_reads_are_accepted(text: str, value: float | None) -> None:
    """Finite decimal numbers of any size are accepted; spellings that only Python accepts are not."""
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("unit", "text", "time_us"),
    [
        ("s", "1458031648", 1458031648_000000),
        ("s", "1458031648.545123", 1458031648_545123),
        ("s", "1458031648.5451239999999999999999", 1458031648_545123),
        ("s", "1458031648.545123" + "9" * 5000, 1458031648_545123),
        ("s", " 1.458031648545123e9 ", 1458031648_545123),
        ("s", "946684800", EARLIEST_US),
        ("ms", "1458031648545.123", 1458031648_545123),
        ("ms", "0001458031648545.1239", 1458031648_545123),
        ("us", "1458031648545123", 1458031648_545123),
        ("us", "1458031648545123.9", 1458031648_545123),
        ("us", str(LATEST_US), LATEST_US),
        ("iso", "2016-03-15T08:47:28.545123Z", 1458031648_545123),
        ("iso", "2016-03-15T10:47:28.545123999+02:00", 1458031648_545123),
        ("iso", "2016-03-15", parse_time("2016-03-15T00:00:00Z")),
    ],
)
def test_times_are_exact_to_the_microsecond(unit: str, text: str, time_us: int) -> None:
    """No unit and no number of decimals loses a microsecond; finer digits are truncated."""
    [event] = events([maker(time_unit=unit).event("A-1", text, {"a": 1.0}, {})])
    assert event.event_time_us == time_us


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("s", "soon", "a number of seconds since the epoch"),
        ("s", "1_458_031_648", "a number of seconds since the epoch"),
        ("s", "1e99999999999999999999", "a number of seconds since the epoch"),
        ("ms", "inf", "a number of milliseconds since the epoch"),
        ("iso", "1458031648545", "an ISO 8601 time"),
        ("iso", "2016-03-15T24:61:00Z", "an ISO 8601 time"),
    ],
)
def test_an_invalid_time_is_malformed(unit: str, text: str, expected: str) -> None:
    """The message says what is expected in the configured unit."""
    with pytest.raises(Malformed) as raised:
        maker(time="when", time_unit=unit).event("A-1", text, {"a": 1.0}, {})
    assert str(raised.value) == f"'when' '{text}' is not {expected} (--time-unit)"


@pytest.mark.parametrize(("unit", "text"), [("s", "1458031648545"), ("s", "-99999999999999"), ("us", "9" * 20)])
def test_a_time_beyond_the_calendar_is_malformed(unit: str, text: str) -> None:
    """A protobuf Timestamp has no such years. Milliseconds read as seconds are a common cause."""
    with pytest.raises(Malformed) as raised:
        maker(time_unit=unit).event("A-1", text, {"a": 1.0}, {})
    assert str(raised.value) == f"'event_time' '{text}' is outside the years 1 to 9999"


@pytest.mark.parametrize(
    ("unit", "text", "reason"),
    [
        ("s", "946684799.999999", Reason.EVENT_TIME_TOO_EARLY),
        ("s", "-0.0000001", Reason.EVENT_TIME_TOO_EARLY),
        ("us", "1e-999999", Reason.EVENT_TIME_TOO_EARLY),
        ("us", str(LATEST_US + 1), Reason.EVENT_TIME_IN_FUTURE),
    ],
)
def test_a_time_that_the_pipeline_refuses_is_refused(unit: str, text: str, reason: Reason) -> None:
    """Times before the year 2000, or later than an hour from now, are bad data."""
    with pytest.raises(BadData) as raised:
        maker(time_unit=unit).event("A-1", text, {"a": 1.0}, {})
    assert raised.value.reason is reason


@pytest.mark.parametrize(
    ("sensor", "time", "missing"), [("", MORNING, "who"), (" ", MORNING, "who"), ("A", "", "when")]
)
def test_a_record_needs_a_sensor_and_a_time(sensor: str, time: str, missing: str) -> None:
    """The message has the file's own name of the missing column."""
    with pytest.raises(Malformed) as raised:
        maker(sensor="who", time="when").event(sensor, time, {"a": 1.0}, {})
    assert str(raised.value) == f"'{missing}' is missing"


@pytest.mark.parametrize(
    ("sensor", "readings", "metadata", "reason"),
    [
        ("agg", {"a": 1.0}, {}, Reason.INVALID_SENSOR_ID),
        ("A#1", {"a": 1.0}, {}, Reason.INVALID_SENSOR_ID),
        ("A", {}, {"room": "attic"}, Reason.NO_READINGS),
        ("A", {"a b": 1.0}, {}, Reason.INVALID_METRIC_NAME),
        ("A", {f"a{n}": 1.0 for n in range(1001)}, {}, Reason.TOO_MANY_READINGS),
        ("A", {"a": 1.0}, {"": "x"}, Reason.INVALID_METADATA_NAME),
        ("A", {"a": 1.0}, {"room": "x" * 4097}, Reason.METADATA_TOO_LONG),
    ],
)
def test_events_are_checked_by_the_rules_of_the_pipeline(
    sensor: str, readings: dict[str, float], metadata: dict[str, str], reason: Reason
) -> None:
    """An event that the pipeline would refuse is refused with the pipeline's reason."""
    with pytest.raises(BadData) as raised:
        maker().event(sensor, MORNING, readings, metadata)
    assert raised.value.reason is reason


def test_half_a_surrogate_pair_is_malformed() -> None:
    """JSON can escape it, but UTF-8 can't encode it: it is refused wherever it is."""
    for sensor, metric, value in (("\ud800", "a", "x"), ("A", "\ud800", "x"), ("A", "a", "\udfff")):
        with pytest.raises(Malformed, match=r"^text contains an unpaired surrogate$"):
            maker().event(sensor, MORNING, {metric: 1.0}, {"room": value})


RECORDS = product(
    ("A", "A#"),
    (MORNING, "2099-01-01T00:00:00Z", "1999-01-01T00:00:00Z"),
    ({"a": 1.5}, {}, {"a": math.inf}, {"a": -0.0, "b": 1e308}, {"": 1.0}),
    ({}, {"room": "küche"}, {"room": "x" * 4097}, {"room": "\udfff"}),
    ("", "e-1", "\ud800"),
)


def test_an_event_is_the_same_whether_or_not_like_events_were_checked_before() -> None:
    """The fast check of known sensors and names refuses what the whole check refuses, and changes no field."""
    known = EventMaker(FileColumns(), lambda: MORNING_US)

    def outcome(maker: EventMaker, record: tuple[Any, ...]) -> Any:
        try:
            return maker.event(*record)[:5]
        except (Malformed, BadData) as problem:
            return type(problem), str(problem)

    found = [
        (record, outcome(EventMaker(FileColumns(), lambda: MORNING_US), record), outcome(known, record))
        for record in [*RECORDS] * 2
    ]
    assert [record for record, first, later in found if first != later] == []
    assert known.event("A", MORNING, {"a": 1.0}, {}).message is None  # not encoded: an event of the fast check


def test_bytes_that_were_not_utf8_are_malformed() -> None:
    """Valid UTF-8 passes; the message has the first invalid byte."""
    check_encoding("küche \N{SNOWMAN}")
    with pytest.raises(Malformed, match=r"^not UTF-8: invalid byte 0xfc$"):
        check_encoding("küche".encode("latin-1").decode(errors="surrogateescape"))


def event(record: dict[str, Any], **columns: str) -> Event:
    [made] = events([maker(**columns).of_object({"sensor_id": "A-1", "event_time": MORNING, **record})])
    return made


def test_each_type_is_a_reading_or_metadata() -> None:
    """Numbers of any type are readings; strings, booleans, times and UUIDs are metadata; None is missing."""
    made = event(
        {
            "a": 1,
            "b": -2.5,
            "c": Decimal("0.1"),
            "on": True,
            "room": "attic",
            "since": date(2020, 2, 29),
            "gone": None,
            "id": UUID(int=7),
        }
    )
    metadata = {"on": "true", "room": "attic", "since": "2020-02-29", "id": str(UUID(int=7))}
    assert made == Event("A-1", MORNING_US, {"a": 1.0, "b": -2.5, "c": 0.1}, metadata)


@pytest.mark.parametrize(
    ("time", "unit"),
    [
        (datetime(2026, 2, 17, 8, tzinfo=UTC), "iso"),
        (datetime(2026, 2, 17, 8), "iso"),
        (datetime(2026, 2, 17, 10, tzinfo=timezone(timedelta(hours=2))), "s"),
        (MORNING_US, "us"),
        (MORNING_US // 1000, "ms"),
        (MORNING_US / 1e6, "s"),
        (Decimal(MORNING_US) / 1_000_000, "s"),
        (MORNING, "iso"),
    ],
)
def test_a_time_is_a_time_or_a_number_in_its_unit(time: Any, unit: str) -> None:
    """The unit applies only to numbers; a datetime without an offset is UTC."""
    assert event({"event_time": time, "a": 1}, time_unit=unit).event_time_us == MORNING_US


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": {"b": 1}}, "'a' is nested"),
        ({"a": b"x"}, "'a' is bytes, neither a number nor text"),
        ({"a": BadValue("is not a UUID")}, "'a' is not a UUID"),
        ({"a": timedelta(1)}, "'a' is a timedelta, neither a number nor text"),
        ({"event_time": BadValue("is not a time")}, "'event_time' is not a time"),
        ({"sensor_id": BadValue("is not text")}, "'sensor_id' is not text"),
        ({"a": 10**400}, "'a' exceeds the range of a double"),
        ({"a": Decimal("1e400")}, "'a' exceeds the range of a double"),
        ({"sensor_id": None}, "'sensor_id' is missing"),
        ({"sensor_id": True}, "'sensor_id' is neither a string nor a number"),
        ({"event_time": None}, "'event_time' is missing"),
        ({"event_time": [1]}, "'event_time' is neither a string nor a number"),
    ],
)
def test_an_unreadable_value_is_malformed(record: dict[str, Any], reason: str) -> None:
    """The reason names the field."""
    with pytest.raises(Malformed) as raised:
        event({"a": 1, **record})
    assert str(raised.value) == reason


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_makes_the_event_invalid(value: float) -> None:
    """It does not count as missing, and the error contains the event."""
    with pytest.raises(InvalidEvent, match=r"^INVALID_READING") as raised:
        event({"a": value})
    assert b"A-1" in raised.value.data


@pytest.mark.parametrize("value", [(1 << 53) + 1, -(1 << 60) - 1, Decimal((1 << 53) + 1)])
def test_an_integer_that_a_double_cannot_hold_is_refused(value: int | Decimal) -> None:
    """Those beyond 2^53 that a double can hold are readings."""
    with pytest.raises(Malformed, match=rf"'n' '{value}' is an integer that a double can't hold exactly"):
        event({"n": value})
    exact = value // 1024 * 1024
    assert event({"n": exact}).readings == {"n": float(exact)}
