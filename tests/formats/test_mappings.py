import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pipeline.core.events import Event
from pipeline.formats.mappings import BadValue, event_of
from pipeline.formats.values import InvalidEvent, Malformed
from tests.formats.reading import MORNING, MORNING_US, events, maker


def event(record: dict[str, Any], **columns: str) -> Event:
    [made] = events([event_of({"sensor_id": "A-1", "event_time": MORNING, **record}, maker(**columns))])
    return made


def test_each_type_has_its_meaning() -> None:
    """Numbers of any kind are readings; strings, booleans and times metadata; None is missing."""
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
    """A time says its unit itself; a naive one is UTC."""
    assert event({"event_time": time, "a": 1}, time_unit=unit).event_time_us == MORNING_US


def test_a_number_can_name_a_sensor() -> None:
    """It is called as it is written."""
    assert event({"sensor_id": 17, "a": 1}).sensor_id == "17"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"a": {"b": 1}}, "'a' is nested"),
        ({"a": [1]}, "'a' is nested"),
        ({"a": b"x"}, "'a' is bytes, neither a number nor text"),
        ({"a": BadValue("is not a UUID")}, "'a' is not a UUID"),
        ({"a": timedelta(1)}, "'a' is a timedelta, neither a number nor text"),
        ({"event_time": BadValue("is no time")}, "'event_time' is no time"),
        ({"sensor_id": BadValue("is no text")}, "'sensor_id' is no text"),
        ({"a": 10**400}, "'a' exceeds the range of a double"),
        ({"a": Decimal("1e400")}, "'a' exceeds the range of a double"),
        ({"sensor_id": None}, "'sensor_id' is missing"),
        ({"sensor_id": True}, "'sensor_id' is neither a string nor a number"),
        ({"event_time": None}, "'event_time' is missing"),
        ({"event_time": [1]}, "'event_time' is neither a string nor a number"),
    ],
)
def test_what_makes_no_event_is_malformed(record: dict[str, Any], reason: str) -> None:
    """The reason names the field."""
    with pytest.raises(Malformed) as raised:
        event({"a": 1, **record})
    assert str(raised.value) == reason


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_an_invalid_event(value: float) -> None:
    """It is not taken for a missing value, and the event comes with the refusal."""
    with pytest.raises(InvalidEvent, match=r"^NON_FINITE_VALUE") as raised:
        event({"a": value})
    assert b"A-1" in raised.value.data
