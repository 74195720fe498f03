import math
from itertools import product
from typing import Any

import pytest

from pipeline.core.events.event import EARLIEST_US, Event, validate
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from pipeline.formats.values import EventMaker, FileColumns, Malformed, check_encoding, parse_number
from tests.formats.reading import LATEST_US, MORNING, MORNING_US, events, maker


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        (" 7 ", 7.0),
        ("-1.5", -1.5),
        ("+1.5", 1.5),
        (".5", 0.5),
        ("1e308", 1e308),
        ("5e-324", 5e-324),
        ("123456789012345678901234567890", 123456789012345678901234567890.0),
        ("1e309", None),
        ("inf", None),
        ("-Infinity", None),
        ("nan", None),
        ("1_000", None),
        ("1,000", None),
        ("0x10", None),
        ("١٢", None),
        ("", None),
        ("true", None),
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
        ("s", "+1458031648.", 1458031648_000000),
        ("s", "946684800", EARLIEST_US),
        ("ms", "1458031648545", 1458031648_545000),
        ("ms", "1458031648545.123", 1458031648_545123),
        ("ms", "0001458031648545.1239", 1458031648_545123),
        ("us", "1458031648545123", 1458031648_545123),
        ("us", "1458031648545123.9", 1458031648_545123),
        ("us", "946684800000000", EARLIEST_US),
        ("us", str(LATEST_US), LATEST_US),
        ("iso", "2016-03-15T08:47:28.545123Z", 1458031648_545123),
        ("iso", "2016-03-15 08:47:28.545123", 1458031648_545123),
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
        ("ms", "2016-03-15", "a number of milliseconds since the epoch"),
        ("us", "1e999999", "a number of microseconds since the epoch"),
        ("iso", "1458031648545", "an ISO 8601 time"),
        ("iso", "2016-03-15T24:61:00Z", "an ISO 8601 time"),
    ],
)
def test_an_invalid_time_is_malformed(unit: str, text: str, expected: str) -> None:
    """The message says what is expected in the configured unit."""
    with pytest.raises(Malformed) as raised:
        maker(time="when", time_unit=unit).event("A-1", text, {"a": 1.0}, {})
    assert str(raised.value) == f"'when' '{text}' is not {expected} (--time-unit)"


@pytest.mark.parametrize("unit", ["s", "ms", "us", "iso"])
def test_messages_shorten_and_escape_text(unit: str) -> None:
    """Whatever a field contains, the message is short and printable."""
    with pytest.raises(Malformed) as raised:
        maker(time_unit=unit).event("A-1", "9\x1b" * 5000, {"a": 1.0}, {})
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


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
        ("ms", "-1", Reason.EVENT_TIME_TOO_EARLY),
        ("s", "-0.0000001", Reason.EVENT_TIME_TOO_EARLY),
        ("us", "1e-999999", Reason.EVENT_TIME_TOO_EARLY),
        ("us", "0", Reason.EVENT_TIME_TOO_EARLY),
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


def test_the_event_has_the_values_of_the_record() -> None:
    """Sensor, time, readings and metadata are unchanged."""
    event = maker().event("A-1", MORNING, {"a": 1.5, "b": -0.0}, {"room": "küche"})
    [(sensor_id, event_time_us, readings, metadata, *_)] = events([event])
    assert (sensor_id, event_time_us, readings, metadata) == (
        "A-1",
        MORNING_US,
        {"a": 1.5, "b": -0.0},
        {"room": "küche"},
    )


RECORDS = product(
    ("A", "A#"),
    (MORNING, "2099-01-01T00:00:00Z", "1999-01-01T00:00:00Z"),
    ({"a": 1.5}, {}, {"a": math.inf}, {"a": -0.0, "b": 1e308}, {"": 1.0}),
    ({}, {"room": "küche"}, {"room": "x" * 4097}, {"room": "\udfff"}),
    ("", "e-1", "\ud800"),
)


def test_events_that_are_not_encoded_are_the_same() -> None:
    """Whether or not like events were checked before, the fields and the refusals are those of encoded events."""
    encoding = EventMaker(FileColumns(), lambda: MORNING_US)
    plain = EventMaker(FileColumns(), lambda: MORNING_US, encodes=False)

    def outcome(maker: EventMaker, record: tuple[Any, ...]) -> Any:
        try:
            made = maker.event(*record)
        except (Malformed, BadData) as problem:
            return type(problem), str(problem)
        return made[:5] if isinstance(made, Event) else validate(made, LATEST_US)[:5]

    found = [(outcome(encoding, record), outcome(plain, record)) for record in [*RECORDS] * 2]
    assert [one for one, other in found if one != other] == []
    assert any(isinstance(plain.event("A", MORNING, {"a": 1.0}, metadata), Event) for metadata in ({}, {"room": "x"}))


def test_bytes_that_were_not_utf8_are_malformed() -> None:
    """Valid UTF-8 passes; the message has the first invalid byte."""
    check_encoding("küche \N{SNOWMAN}")
    with pytest.raises(Malformed, match=r"^not UTF-8: invalid byte 0xfc$"):
        check_encoding("küche".encode("latin-1").decode(errors="surrogateescape"))
