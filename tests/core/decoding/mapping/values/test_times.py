"""Event times."""

import pytest

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.reasons import BadData, Reason
from tests.core.decoding.mapping.values.heads import KINDS, T_US, T, refused

BERLIN = 'time_zone = "Europe/Berlin"'
TWICE_US = 1_792_888_200_000_000  # 2026-10-25T00:30:00Z, 02:30 in Berlin for the first time
HOUR_US = 3_600_000_000


@pytest.mark.parametrize(
    ("value", "source", "us"),
    [
        (T, '{ path = "v", unit = "s" }', T_US),
        (T + 0.25, '{ path = "v", unit = "s" }', T_US + 250_000),
        (f"{T}.123456789", '{ path = "v", unit = "s" }', T_US + 123_456),
        (T * 1000 + 1, '{ path = "v", unit = "ms" }', T_US + 1000),
        (T_US + 1, '{ path = "v", unit = "us" }', T_US + 1),
        (T_US * 1000 + 1999, '{ path = "v", unit = "ns" }', T_US + 1),
        (-1, '{ path = "v", unit = "ns" }', -1),  # the microsecond that it is in
        (0, '{ path = "v", unit = "s" }', None),
        (0.0, '{ path = "v", unit = "s" }', None),
        ("0", '{ path = "v", unit = "s" }', None),
        ("", '{ path = "v", unit = "s" }', None),
        (" ", '"v"', None),
        (None, '"v"', None),
        (-1, '{ path = "v", unit = "s", null = -1 }', None),
        ("2026-02-17T10:30:00Z", '"v"', T_US),
        ("2026-02-17T11:30:00.5+01:00", '"v"', T_US + 500_000),
        ("2026-02-17 10:30", '"v"', T_US),
        ("2026-02-17 11:30", '{ path = "v", time_zone = "Europe/Amsterdam" }', T_US),
        ("2026-02-17T10:30:00Z", '{ path = "v", time_zone = "Europe/Amsterdam" }', T_US),
        ("17.02.2026 11:30", '{ path = "v", format = "%d.%m.%Y %H:%M", time_zone = "Europe/Berlin" }', T_US),
        ("17.02.2026 10:30", '{ path = "v", format = "%d.%m.%Y %H:%M" }', T_US),
        ("17.02.2026 11:30 +0100", '{ path = "v", format = "%d.%m.%Y %H:%M %z" }', T_US),
        ("25.10.26 02:30", '{ path = "v", format = "%d.%m.%y %H:%M", ' + BERLIN + ', ambiguous = "first" }', TWICE_US),
        ("2026-10-25 02:30", '{ path = "v", time_zone = "Europe/Berlin", ambiguous = "second" }', TWICE_US + HOUR_US),
        ("2026-10-25 02:30+02:00", '{ path = "v", time_zone = "Europe/Berlin" }', TWICE_US),
        ("2026-10-25 01:59:59", '{ path = "v", time_zone = "Europe/Berlin" }', TWICE_US - 1_801_000_000),
        ("2026-10-25 03:00", '{ path = "v", time_zone = "Europe/Berlin" }', TWICE_US + HOUR_US + 1_800_000_000),
        ("2026-10-25 02:30", '{ path = "{v}", time_zone = "Europe/Berlin", ambiguous = "second" }', TWICE_US + HOUR_US),
        ("30", '{ path = "17.02.2026 10:{v}", format = "%d.%m.%Y %H:%M" }', T_US),
        ("0001-01-01", '{ path = "v", time_zone = "Etc/GMT-9" }', -62135629200000000),
        ("9999-12-31T23:59", '{ path = "v", time_zone = "America/New_York" }', 253402318740000000),
    ],
)  # fmt: skip
def test_times(time, value, source, us):
    """Numbers and texts are times in the declared unit or format, to the microsecond."""
    assert time(value, source) == us


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (value, '{ path = "v", unit = "s" }')
        for value in ("x", "nan", "Infinity", "1e99999", "1e999999999999999999999", "1_000", "٣", True, [], {}, 10**390)
    ]
    + [(value, '"v"') for value in ("yesterday", "2026-13-01", T, 1.5, True, [])]
    + [
        ("17.02.2026", '{ path = "v", format = "%d.%m.%Y %H:%M" }'),
        ("31.02.2026 10:30", '{ path = "v", format = "%d.%m.%Y %H:%M" }'),
        ("2026-03-29 02:30", '{ path = "v", time_zone = "Europe/Amsterdam" }'),  # clocks went from 02:00 to 03:00
        ("2026-03-29 02:30", '{ path = "v", time_zone = "Europe/Amsterdam", ambiguous = "second" }'),
        ("2026-10-25 02:30", '{ path = "v", time_zone = "Europe/Amsterdam" }'),  # and back from 03:00 to 02:00
        ("x", '{ path = "v", time_zone = "Europe/Amsterdam" }'),
    ],
)
def test_what_is_no_time_is_refused_or_null(time, value, source):
    """What is no time is refused, or left out if the mapping says so."""
    assert refused(time, value, source) is Reason.INVALID_EVENT_TIME
    assert time(value, source, 'invalid = "null"\n') is None


@pytest.mark.parametrize(
    ("fields", "source", "us"),
    [
        ({"at": {"seconds": T, "nanos": 1999}}, '"at"', T_US + 1),
        ({"time": T}, '{ path = "time", unit = "s" }', T_US),
        ({"f64": T + 0.5}, '{ path = "f64", unit = "s" }', T_US + 500_000),
        ({"text": "2026-02-17T10:30:00Z"}, '"text"', T_US),
        ({}, '["at", { path = "time", unit = "s" }, "text"]', 0),
        ({"at": {"nanos": -1}}, '{ path = "at", invalid = "null" }', 0),
    ],
)
def test_times_of_fields(mapped, fields, source, us):
    """Timestamps and numbers of fields are times; an unset one is no time."""
    text = KINDS.replace('time = "$publish_time"', f"time = {source}") + "[readings]\n"
    if us:
        assert mapped(text, fields).events[0].event_time_us == us
    else:
        with pytest.raises(BadData, match="the mapping finds no time"):
            mapped(text, fields)


def test_a_timestamp_that_is_not_valid_is_refused(mapped):
    """Negative nanoseconds make an INVALID_EVENT_TIME."""
    with pytest.raises(BadData, match="nanoseconds") as error:
        mapped(KINDS.replace("$publish_time", "at") + "[readings]\n", {"at": {"nanos": -1}})
    assert error.value.reason is Reason.INVALID_EVENT_TIME


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('"time"', "needs a unit"),
        ('"flag"', "a time is a Timestamp, a number or text, not bool"),
        ('"position"', "a time is a Timestamp"),
    ],
)
def test_fields_that_are_no_times(mapper, source, problem):
    """A field that cannot be a time is an error of the mapping."""
    with pytest.raises(MappingError, match=problem):
        mapper(KINDS.replace('"$publish_time"', source) + "[readings]\n")


@pytest.mark.parametrize(
    ("text", "way"), [("2026-10-25 02:30", 'ambiguous = "first" or "second"'), ("2026-03-29 02:30", "like Etc/GMT-1")]
)
def test_a_time_when_clocks_change_names_the_way_out(time, text, way):
    """A local time that clocks show twice, or never, is refused with a detail that says how the mapping can read it."""
    with pytest.raises(BadData, match=way):
        time(text, '{ path = "v", time_zone = "Europe/Berlin" }')
