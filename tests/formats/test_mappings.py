import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pipeline.core.events.event import Event
from pipeline.formats.mappings import BadValue, event_of
from pipeline.formats.values import InvalidEvent, Malformed
from tests.formats.reading import MORNING, MORNING_US, events, maker


def event(record: dict[str, Any], **columns: str) -> Event:
    [made] = events([event_of({"sensor_id": "A-1", "event_time": MORNING, **record}, maker(**columns))])
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


def test_a_number_can_be_a_sensor_id() -> None:
    """The id is the number as it is written."""
    assert event({"sensor_id": 17, "a": 1}).sensor_id == "17"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": {"b": 1}}, "'a' is nested"),
        ({"a": [1]}, "'a' is nested"),
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
    with pytest.raises(InvalidEvent, match=r"^NON_FINITE_VALUE") as raised:
        event({"a": value})
    assert b"A-1" in raised.value.data


@pytest.mark.parametrize("value", [(1 << 53) + 1, -(1 << 60) - 1, Decimal((1 << 53) + 1)])
def test_an_integer_that_a_double_cannot_hold_is_refused(value: int | Decimal) -> None:
    """Those beyond 2^53 that a double can hold are readings."""
    with pytest.raises(Malformed, match=rf"'n' '{value}' is an integer that a double can't hold exactly"):
        event({"n": value})
    exact = value // 1024 * 1024
    assert event({"n": exact}).readings == {"n": float(exact)}
