"""Times of values, and which of several a mapping believes."""

import json
from datetime import UTC, datetime

import pytest

from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
MIDNIGHT_US = T_US + 13 * HOUR_US + HOUR_US // 2  # 2026-02-18
TWICE_US = 1_792_888_200_000_000  # 2026-10-25T00:30:00Z, 02:30 in Berlin for the first time
LEAP_US = 1_483_228_799_999_999  # in 2016-12-31T23:59:60Z
BERLIN = 'time_zone = "Europe/Berlin"'
EXCEL = 'unit = "d", epoch = "1899-12-30"'
HEAD = 'message = "json"\nsensor = "s"\nreadings = {}\n'


def of_v(source):
    return f'{{ path = "v"{", " if source else ""}{source} }}'


@pytest.fixture
def time(mapped):
    """The event time of JSON by a mapping's ``time``; None if it is not set."""

    def of(value, source, **envelope):
        try:
            result = mapped(f"{HEAD}time = {source}", json.dumps({"s": "s", "v": value}), **envelope)
        except BadData as problem:
            if problem.reason is Reason.MISSING_EVENT_TIME:
                return None
            raise
        return result.events[0].event_time_us

    return of


@pytest.mark.parametrize(
    ("value", "source", "us"),
    [
        (T, 'unit = "s"', T_US),
        (T + 0.25, 'unit = "s"', T_US + 250_000),
        (f"{T}.123456789", 'unit = "s"', T_US + 123_456),
        (T * 1000 + 1, 'unit = "ms"', T_US + 1000),
        (T_US + 1, 'unit = "us"', T_US + 1),
        (T_US * 1000 + 1999, 'unit = "ns"', T_US + 1),
        (-1, 'unit = "ns"', -1),  # the microsecond that it is in
        (0, 'unit = "s"', None),
        ("0", 'unit = "s"', None),
        ("", 'unit = "s"', None),
        (" ", "", None),
        (-1, 'unit = "s", null = -1', None),
        (20501.4375, 'unit = "d"', T_US),
        (46070.4375, EXCEL, T_US),
        ("46070.43749999", EXCEL, T_US - 1_000),  # to a millisecond
        (46070.430555555555, EXCEL, T_US - 600_000_000),  # the double next to 10:20
        (46070.479166666664, f"{EXCEL}, {BERLIN}", T_US),
        (46070.479166666664, f'unit = "d", epoch = "1899-12-30T00:00+01:00", {BERLIN}', T_US),
        (0, EXCEL, None),
        (1_455_359_400, 'unit = "s", epoch = "1980-01-06"', T_US),
        ("2026-02-17T10:30:00Z", "", T_US),
        ("2026-02-17t10:30:00z", "", T_US),
        ("2026-02-17T11:30:00.5+01:00", "", T_US + 500_000),
        ("2026-02-17 11:30", 'time_zone = "Europe/Amsterdam"', T_US),
        ("2026-02-17T10:30:00Z", 'time_zone = "Europe/Amsterdam"', T_US),
        ("17.02.2026 11:30", f'format = "%d.%m.%Y %H:%M", {BERLIN}', T_US),
        ("17.02.2026 11:30 +0100", 'format = "%d.%m.%Y %H:%M %z"', T_US),
        ("17.02.2026 10:30z", 'format = "%d.%m.%Y %H:%M%z"', T_US),
        ("am 17.02.2026 um 11:30 Uhr (100 %)", f'format = "am %d.%m.%Y um %H:%M Uhr (100 %%)", {BERLIN}', T_US),
        ("2026-02-17T24:00:00Z", "", MIDNIGHT_US),
        ("20260217T24+0100", "", MIDNIGHT_US - HOUR_US),
        ("2026-12-31 24:00:00.000", BERLIN, parse_time("2026-12-31T23:00Z")),
        ("24.02.2024 24:00", f'format = "%d.%m.%Y %H:%M", {BERLIN}', parse_time("2024-02-24T23:00Z")),
        ("202602172400", 'format = "%Y%m%d%H%M"', MIDNIGHT_US),
        (2026021624, 'format = "%Y%m%d%H"', MIDNIGHT_US - 24 * HOUR_US),
        (0, 'format = "%Y%m%d"', None),
        ("2016-12-31T23:59:60Z", "", LEAP_US),
        ("2017-01-01T00:59:60.5+01:00", "", LEAP_US),
        ("2017-01-01 00:59:60", BERLIN, LEAP_US),
        ("31.12.16 23:59:60", 'format = "%d.%m.%y %H:%M:%S"', LEAP_US),
        ("17.02.2026 11:30 - 17.02.2026 12:30", f'format = "%d.%m.%Y %H:%M", interval = " - ", {BERLIN}', T_US),
        ("2026-02-17T10:30Z/PT1H", 'interval = "/"', T_US),
        (f"{T};{T + 60}", 'unit = "s", interval = ";"', T_US),
        ("", 'interval = "/"', None),
        ("2026-02-17T10:30Z", 'stamps = "end", length = "15m"', T_US - HOUR_US // 4),
        (T, 'unit = "s", stamps = "end", length = "1h"', T_US - HOUR_US),
        ("2026-02-17 24:00", f'{BERLIN}, stamps = "end", length = "1h"', MIDNIGHT_US - 2 * HOUR_US),
        ("2026-03-30", f'{BERLIN}, stamps = "end", length = "1d"', parse_time("2026-03-28T23:00Z")),  # 23 hours
        ("2026-03-30", 'stamps = "end", length = "1d"', parse_time("2026-03-29")),
        ("25.10.26 02:30", f'format = "%d.%m.%y %H:%M", {BERLIN}, ambiguous = "first"', TWICE_US),
        ("2026-10-25 02:30", f'{BERLIN}, ambiguous = "second"', TWICE_US + HOUR_US),
        ("2026-10-25 02:30+02:00", BERLIN, TWICE_US),
        ("2026-10-25 01:59:59", BERLIN, TWICE_US - 1_801_000_000),
        ("2026-10-25 03:00", BERLIN, TWICE_US + HOUR_US + 1_800_000_000),
        ("0001-01-01", 'time_zone = "Etc/GMT-9"', -62135629200000000),
        ("9999-12-31T23:59", 'time_zone = "America/New_York"', 253402318740000000),
        (T, 'unit = "s", valid_from = "2026-02-17T10:30", max_age = "1d"', T_US),
    ],
)
def test_times(time, value, source, us):
    """Numbers and texts are times in the declared unit, format and interval, to the microsecond."""
    assert time(value, of_v(source)) == us


@pytest.mark.parametrize(
    ("value", "source", "us"),
    [
        ("30", '{ path = "17.02.2026 10:{v}", format = "%d.%m.%Y %H:%M" }', T_US),
        ("2026-10-25 02:30", f'{{ path = "{{v}}", {BERLIN}, ambiguous = "second" }}', TWICE_US + HOUR_US),
        ("17", '{ path = "2026-02-{v} 24:00", stamps = "end", length = "5m" }', MIDNIGHT_US - HOUR_US // 12),
        (0, '{ path = "$publish_time", stamps = "end", length = "5m" }', MIDNIGHT_US - HOUR_US // 12),
    ],
)
def test_times_of_texts_with_paths_and_of_messages(time, value, source, us):
    """What a table of a time declares holds for a text with paths, and for the publish time."""
    assert time(value, source, publish_time=datetime(2026, 2, 18, tzinfo=UTC)) == us


@pytest.mark.parametrize(
    ("value", "source"),
    [
        (value, 'unit = "s"')
        for value in ("x", "nan", "Infinity", "1e99999", "1e999999999999999999999", "1_000", "٣", True, [], {}, 10**390)
    ]
    + [(value, "") for value in ("yesterday", "2026-13-01", T, 1.5, True, [], "24" * 200_000)]
    + [
        (f"2026-02-17T{clock}", "")
        for clock in ("24:01Z", "24:00:00.1Z", "10:60Z", "25:00Z", "10:30:60Z", "10:00-24:00")
    ]
    + [
        ("31.02.2026 10:30", 'format = "%d.%m.%Y %H:%M"'),
        ("2016-12-31 23:59:60", BERLIN),  # 22:59:60 in UTC
        ("9999-12-31T24:00", ""),
        (1e12, f"{EXCEL}, {BERLIN}"),
        ("2026-02-17T10:30Z", 'interval = "/"'),
        (T, 'interval = "/"'),
        ("2026-03-29 02:30", 'time_zone = "Europe/Amsterdam"'),  # clocks went from 02:00 to 03:00
        ("2026-03-29 02:30", 'time_zone = "Europe/Amsterdam", ambiguous = "second"'),
        (46110.104166666664, f"{EXCEL}, {BERLIN}"),  # the same
        ("2026-10-25 02:30", 'time_zone = "Europe/Amsterdam"'),  # and back from 03:00 to 02:00
    ],
)
def test_what_is_no_time_is_refused(time, value, source):
    """What is no time is refused, with one reason."""
    with pytest.raises(BadData) as error:
        time(value, of_v(source))
    assert error.value.reason is Reason.INVALID_EVENT_TIME


def test_a_timestamp_that_is_not_valid_is_refused_or_replaced(mapped):
    """Negative nanoseconds make an INVALID_EVENT_TIME, unless another time is in the list."""
    text = 'message = "fleet.Kinds"\nsensor = { constant = "s" }\nreadings = {}\ntime = '
    with pytest.raises(BadData, match="nanoseconds") as error:
        mapped(f"{text}'at'", {"at": {"nanos": -1}})
    assert error.value.reason is Reason.INVALID_EVENT_TIME
    sent = datetime.fromtimestamp(T, UTC)
    result = mapped(f"{text}['at', '$publish_time']", {"at": {"nanos": -1}}, publish_time=sent)
    assert result.events[0].event_time_us == T_US


@pytest.mark.parametrize(
    ("text", "way"), [("2026-10-25 02:30", 'ambiguous = "first" or "second"'), ("2026-03-29 02:30", "like Etc/GMT-1")]
)
@pytest.mark.parametrize("source", [f'{{ path = "v", {BERLIN} }}', f'[{{ path = "v", {BERLIN} }}, "$publish_time"]'])
def test_a_time_when_clocks_change_names_the_way_out(time, text, way, source):
    """It is refused with a detail that says how the mapping can read it, also if another time is in the list."""
    with pytest.raises(BadData, match=way):
        time(text, source, publish_time=datetime.fromtimestamp(T, UTC))


PUBLISHED_US = parse_time("2026-02-17T12:00Z")
LIST = (
    'time = [{ path = "t", unit = "s", valid_from = "2020-01-01", max_age = "30d" }, { path = "u" }, "$publish_time"]'
)


@pytest.mark.parametrize(
    ("values", "us", "problem"),
    [
        ({"t": T}, T_US, ""),
        ({}, PUBLISHED_US, ""),
        ({"t": 17}, PUBLISHED_US, "time is 1970-01-01T00:00:17Z, before its valid_from, 2020-01-01T00:00:00Z"),
        ({"t": 1_600_000_000}, PUBLISHED_US, "its max_age of 30d before the publish time"),
        ({"t": 2_085_956_896}, PUBLISHED_US, "event_time 2036-02-07T00:28:16Z is after 2026-02-18"),
        ({"t": "soon"}, PUBLISHED_US, "not a time"),
        ({"t": 17, "u": "2026-02-17T11:00Z"}, PUBLISHED_US - HOUR_US, "1970"),
        ({"t": 17, "u": "1999-12-31"}, PUBLISHED_US, "1970"),
        ({"u": "2019-05-01"}, parse_time("2019-05-01"), ""),  # which declares nothing
        ({"u": "1999-12-31"}, PUBLISHED_US, "is before 2000-01-01T00:00:00Z"),
    ],
)
def test_the_next_time_of_a_list_counts_if_one_is_not_plausible(mapped, values, us, problem):
    """It counts for a time that is none, too early by what its table or every event declares, too old or too late."""
    result = mapped(
        f"{HEAD}{LIST}", json.dumps({"s": "s", **values}), latest_us=PUBLISHED_US + DAY_US,
        publish_time=datetime(2026, 2, 17, 12, tzinfo=UTC),
    )  # fmt: skip
    assert result.events[0].event_time_us == us
    details = [each.detail for each in result.replaced_times]
    assert len(details) == bool(problem)
    assert all(problem in each for each in details)


def test_a_list_without_a_plausible_time_refuses_with_the_first_problem(mapped):
    """A record of a file has no publish time: then no age is too great, and nothing is left of this list."""
    with pytest.raises(BadData, match="valid_from") as error:
        mapped(f"{HEAD}{LIST}", json.dumps({"s": "s", "t": 17, "u": "1999-12-31"}))
    assert error.value.reason is Reason.EVENT_TIME_TOO_EARLY
    assert mapped(f"{HEAD}{LIST}", json.dumps({"s": "s", "t": 1_600_000_000})).events[0].event_time_us == 16 * 10**14


def test_each_element_chooses_its_time(mapped):
    """Of each element that has another time, the problem is counted, but no more than a thousand are kept."""
    text = (
        'message = "json"\nsensor = "s"\neach = "e[]"\nreadings = { x = ".x" }\n'
        'time = [{ path = ".t", unit = "s" }, { path = "t", unit = "s" }]'
    )
    payload = json.dumps({"s": "s", "t": T, "e": [{"t": t, "x": 1} for t in (T, 5, "x", T + 1, *[6] * 2000)]})
    result = mapped(text, payload)
    assert sorted(made.event_time_us for made in result.events) == [T_US, T_US + 1_000_000]
    assert len(result.replaced_times) == 2002
    assert len({id(problem) for problem in result.replaced_times}) == 1000
