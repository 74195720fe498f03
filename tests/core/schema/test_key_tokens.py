import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.schema.key_tokens import DAY_US, SECOND_US, WEEK_US, TemplateError, parse_token
from tests.support.strategies import times


def at(*fields):
    return (datetime(*fields, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


TEN_THIRTY = at(2026, 2, 17, 10, 30, 15, 123456)
KNOWN = (
    "{sensor_id}, {metric}, {metadata.NAME}, {event_id}, {salt:N}, {shard:COUNT}, {reverse_s|ms|us}, {iso_s|ms|us}, "
    "{time:FORMAT}, {bucket:DURATION}"
)

TIME_TOKENS = [
    "reverse_s", "reverse_ms", "reverse_us", "iso_s", "iso_ms", "iso_us", "bucket:1s", "bucket:90s", "bucket:15m",
    "bucket:1h", "bucket:6h", "bucket:1d", "bucket:1w", "time:%Y", "time:%Y-%m", "time:%Y%m%d", "time:%F", "time:%FT%T",
    "time:%Y-%m-%d-%H%M", "time:%Y.%m.%d_%H.%M.%S.%f", "time:%Y/%j", "time:%Y-%j-%H", "time:%G", "time:%G-W%V",
    "time:%GW%V.%u", "time:%G-%V-%u:%T", "time:at%%%Y-(%m)+[%d]",
]  # fmt: skip
time_tokens = st.sampled_from(TIME_TOKENS).map(parse_token)
near = st.integers(-2 * SECOND_US, 2 * SECOND_US) | st.integers(-400 * DAY_US, 400 * DAY_US)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("reverse_ms", "8228675784876"),
        ("reverse_us", "8228675784876543"),
        ("iso_ms", "2026-02-17T10:30:15.123"),
        ("iso_us", "2026-02-17T10:30:15.123456"),
        ("time:%Y-%m-%d-%H%M", "2026-02-17-1030"),
        ("time:%F %T".replace(" ", "_"), "2026-02-17_10:30:15"),
        ("time:%Y%m%d%H%M%S%f", "20260217103015123456"),
        ("time:%Y-%j", "2026-048"),
        ("time:%G-W%V-%u", "2026-W08-2"),
        ("time:%%%Y%%", "%2026%"),
        ("time:%%F%Y", "%F2026"),
        ("bucket:10s", "2026-02-17T10:30:10"),
        ("bucket:15m", "2026-02-17T10:30:00"),
        ("bucket:1h", "2026-02-17T10"),
        ("bucket:6h", "2026-02-17T06:00:00"),
        ("bucket:1d", "2026-02-17"),
        ("bucket:1w", "2026-W08"),
    ],
)
def test_rendered_times(token, text):
    """Each time token renders as documented, in UTC."""
    assert parse_token(token).render(TEN_THIRTY) == text


@pytest.mark.parametrize(
    ("day", "week"),
    [
        ((2026, 1, 1), "2026-W01"),  # a Thursday
        ((2026, 12, 31), "2026-W53"),
        ((2027, 1, 3, 23, 59, 59, 999_999), "2026-W53"),
        ((2027, 1, 4), "2027-W01"),
        ((2024, 12, 30), "2025-W01"),
    ],
)
def test_iso_weeks(day, week):
    """Weeks are ISO weeks: they start on Monday and belong to the year of their Thursday."""
    token = parse_token("bucket:1w")
    assert token.render(at(*day)) == week
    start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=token.floor(at(*day)))
    assert start.weekday() == 0
    assert 0 <= at(*day) - token.floor(at(*day)) < WEEK_US


@given(time_tokens, times, near)
def test_sorts_by_time(token, time_us, offset_us):
    """Texts are sorted by time, descending if the newest comes first."""
    one, other = sorted((time_us, max(0, time_us + offset_us)), reverse=token.newest_first)
    assert token.render(one) <= token.render(other)
    assert len(token.render(one)) == len(token.render(other))


@given(time_tokens, times)
def test_reads_back_to_the_start_of_the_grain(token, time_us):
    """A text parses to the first instant that renders so, and its pattern matches only that text."""
    text = token.render(time_us)
    floor_us = token.parse(text)
    assert floor_us == token.floor(time_us) <= time_us
    assert token.render(floor_us) == text
    assert floor_us == 0 or token.render(floor_us - 1) != text
    assert re.fullmatch(token.pattern, text)
    assert not re.fullmatch(token.pattern, text + "0")


@given(time_tokens, times)
def test_next_is_the_start_of_the_next_grain(token, time_us):
    """The next grain starts right after the last instant of this one, and a grain is at most grain_us long."""
    if time_us > 9_990_000_000_000_000:
        time_us -= 366 * DAY_US  # leaves room for the next one
    following = token.next(time_us)
    assert following > time_us
    assert token.floor(following) == following
    assert token.render(following - 1) == token.render(time_us) != token.render(following)
    assert following - token.floor(time_us) <= token.grain_us


@pytest.mark.parametrize(
    ("token", "text"),
    [
        ("reverse_s", "82286757841"),
        ("reverse_s", "-228675784"),
        ("reverse_ms", "822867578487²"),
        ("iso_s", "2026-02-30T00:00:00"),
        ("iso_s", "2026-02-17T10:30:60"),
        ("iso_ms", "2026-02-17T10:30:15.123456"),
        ("time:%Y-%j", "2026-366"),
        ("time:%Y", "0000"),
        ("time:%G-W%V", "2025-W53"),
        ("bucket:1w", "2026-W00"),
        ("bucket:15m", "2026-02-17T10:07:00"),
        ("bucket:1h", "2026-02-17T10:00"),
    ],
)
def test_text_that_is_never_rendered(token, text):
    """Text that the token never renders is a ValueError, such as week 53 of a short year or the middle of a bucket."""
    with pytest.raises(ValueError, match=r"."):
        parse_token(token).parse(text)


@given(
    st.lists(st.sampled_from([*(f"%{c}" for c in "YGmdjVuHMSfFT%yBp"), "-", "T", "x"]), max_size=7).map("".join),
    st.data(),
)
def test_accepted_formats_sort(time_format, data):
    """Any format is either refused, or sorts by time and can be parsed."""
    try:
        token = parse_token(f"time:{time_format}")
    except TemplateError:
        return
    one, other = sorted((data.draw(times), data.draw(times)))
    assert token.render(one) <= token.render(other)
    assert token.parse(token.render(one)) == token.floor(one) <= one


@pytest.mark.parametrize(
    ("sensor_id", "salt", "shard"),
    [("balloon-7", "0d", "00"), ("3698", "94", "16"), ("a", "0c", "08"), ("~", "4c", "22")],
)
def test_salts_and_shards_are_stable(sensor_id, salt, shard):
    """These values must never change, or existing rows would not be found."""
    assert parse_token("salt:2").render(sensor_id) == salt
    assert parse_token("shard:32").render(sensor_id) == shard


@pytest.mark.parametrize(
    ("text", "count"), [("salt:1", 16), ("salt:2", 256), ("shard:2", 2), ("shard:32", 32), ("shard:100", 100)]
)
def test_values_are_in_the_order_of_keys(text, count):
    """A token's values are complete, and in the order of keys."""
    values = parse_token(text).values
    assert len(set(values)) == count
    assert values == sorted(values)
    assert len({len(value) for value in values}) == 1


_BUCKET = "use one like 15m, 1h, 6h, 1d, or 1w for ISO weeks"
_DURATION = "is not a duration; write a whole number and s, m, h or d, like 90s or 15m, or 1w for ISO weeks"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("time:", "does not sort by time: it must begin with the year; use one like {time:%Y-%m-%d-%H%M}"),
        ("time:%m-%Y", "does not sort by time: it must begin with the year; use one like {time:%Y-%m-%d-%H%M}"),
        *(
            (f"time:{time_format}", f"does not sort by time: {order}; use one like {{time:%Y-%m-%d-%H%M}}")
            for time_format, order in (
                ("%Y-%d", "%d (day) can't follow %Y (year)"),
                ("%Y-W%V", "%V (ISO week) can't follow %Y (year)"),
                ("%G-%m", "%m (month) can't follow %G (ISO year)"),
                ("%G-W%V-%d", "%d (day) can't follow %V (ISO week)"),
                ("%Y-%m-%j", "%j (day of the year) can't follow %m (month)"),
                ("%Y-%m-%d-%M", "%M (minute) can't follow %d (day)"),
                ("%F-%f", "%f (microsecond) can't follow %d (day)"),
                ("%Y-%Y", "%Y (year) can't follow %Y (year)"),
            )
        ),
        *(
            (
                f"time:%Y-%{directive}",
                f"contains %{directive[:1]}, which does not sort by time or has no fixed width; "
                "use %Y, %G, %j, %f, %m, %d, %H, %M, %S, %V, %u, %F, %T or %%",
            )
            for directive in (*"aAbBcCDeEghIklnOpPrRstUwWxXyzZ+-", "-d", "")
        ),
        ("time:agg#%Y", "contains '#', which separates the fields of a key; leave it out or use two times"),
        *((f"bucket:{length}", f"does not divide a day; {_BUCKET}") for length in ("0", "0s", "7s", "25h", "2d", "7d")),
        *((f"bucket:{length}", f": {length!r} {_DURATION}") for length in ("", "2w", "1M", "1.5h", "-1h", "10ms")),
        *((f"salt:{number}", "takes 1 to 4 digits") for number in ("0", "5", "02", "", "two", "²")),
        *((f"shard:{number}", "takes 2 to 10000 shards") for number in ("1", "10001", "-2", "9" * 5000)),
        *(
            (text, f"is not a token; the tokens are {KNOWN}")
            for text in ("", "sensor", "sensor_id ", "reverse_ns", "metadata", "metadata.", "metadata.a#b")
        ),
        ("metadata." + "x" * 129, f"is not a token; the tokens are {KNOWN}"),
    ],
)
def test_refusals(text, problem):
    """Unknown tokens, tokens that do not sort and invalid arguments are refused in a line that says what would do."""
    with pytest.raises(TemplateError) as caught:
        parse_token(text)
    between = "" if problem.startswith(":") else " "
    assert str(caught.value) == f"{{{text}}}{between}{problem}"
