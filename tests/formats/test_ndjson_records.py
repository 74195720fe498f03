import io

import pytest

from pipeline.core.events.event import Event
from pipeline.formats.lines import Lines, Record, Refusal, UnreadableFile
from pipeline.formats.ndjson_records import ndjson_records
from tests.formats.reading import MORNING, MORNING_US, events, maker, refusals, too_long

GOOD = f'{{"sensor_id": "A-1", "event_time": "{MORNING}", "a": 1}}'


def read(text: str, limit: int = 10_000_000, **columns: str) -> list[Record]:
    return list(ndjson_records(Lines(io.StringIO(text, newline=""), limit), maker(**columns)))


def test_a_json_object_becomes_an_event() -> None:
    """Numbers are readings, strings and booleans metadata, null is missing; blank lines are skipped."""
    records = read(
        f'{{"sensor_id": "A-1", "event_time": "{MORNING}", "a": 1, "b": -2.5e1, "on": true, "off": false, '
        f'"room": "NA", "gone": null, "none": ""}}\r\n\n  \n{{"a": 2, "event_time": "{MORNING}", "sensor_id": 17}}'
    )
    metadata = {"on": "true", "off": "false", "room": "NA", "none": ""}
    assert events(records) == [
        Event("A-1", MORNING_US, {"a": 1.0, "b": -25.0}, metadata),
        Event("17", MORNING_US, {"a": 2.0}, {}),
    ]


@pytest.mark.parametrize("time", ["1458031648.545123", '"1458031648.545123"', "1458031648545123e-6"])
def test_a_json_number_keeps_its_microseconds(time: str) -> None:
    """A time written as a JSON number is as exact as one in a string."""
    [event] = events(read(f'{{"who": "A-1", "t": {time}, "a": 1}}', sensor="who", time="t", time_unit="s"))
    assert event == Event("A-1", 1458031648_545123, {"a": 1.0}, {})


def test_times_and_sensors_keep_all_their_digits() -> None:
    """They do so even if a double would lose digits, whatever the lines before contain."""
    times = ["1458031648545", "1458031648545.1239", "1458031648546"]
    records = read(
        "\n".join(f'{{"sensor_id": 1.50, "event_time": {time}, "a": 0.10}}' for time in times), time_unit="ms"
    )
    assert events(records) == [
        Event("1.50", 1458031648_000000 + micros, {"a": 0.1}, {}) for micros in (545000, 545123, 546000)
    ]
    [first, second] = events(read(f'{GOOD}\n{{"sensor_id": 1.50, "event_time": "{MORNING}", "a": 1}}'))
    assert (first.sensor_id, second.sensor_id) == ("A-1", "1.50")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ('"a": {"b": 1}', "'a' is nested"),
        ('"a": [1]', "'a' is nested"),
        ('"a": 1, "a": 2', "not JSON: 'a' appears twice"),
        ('"a": NaN', "not JSON: NaN is not a JSON number"),
        ('"a": -Infinity', "not JSON: -Infinity is not a JSON number"),
        ('"a": 1e400', "'a' exceeds the range of a double"),
        ('"a": -1' + "0" * 400, "'a' exceeds the range of a double"),
        ('"a": ' + "9" * 5000, "not JSON: an integer has thousands of digits"),
        ('"a": 1,', "not JSON: "),
        ('"a": ' + "[" * 100_000, "not JSON: it is nested more than 100 levels deep"),
        ('"a": 1, "room": "\\ud800"', "text contains an unpaired surrogate"),
        ('"a": 1, "room": "k\udcfcche"', "not UTF-8: invalid byte 0xfc"),
        ('"a": null', "NO_READINGS: "),
        ('"a b": 1', "INVALID_METRIC_NAME: "),
    ],
)
def test_invalid_json_is_refused(values: str, reason: str) -> None:
    """A bad line is refused with its number, and the next one is read."""
    bad = f'{{"sensor_id": "A-1", "event_time": "{MORNING}", {values}}}'
    records = read(f"{GOOD}\n{bad}\n{GOOD}\n")
    [refusal] = refusals(records)
    assert refusal.line == 2
    assert refusal.reason.startswith(reason)
    assert len(events(records)) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1, 2]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("not json", "not JSON: Expecting value at character 1"),
        (f'{{"event_time": "{MORNING}", "a": 1}}', "'sensor_id' is missing"),
        (f'{{"sensor_id": null, "event_time": "{MORNING}", "a": 1}}', "'sensor_id' is missing"),
        (f'{{"sensor_id": true, "event_time": "{MORNING}", "a": 1}}', "'sensor_id' is neither a string nor a number"),
        ('{"sensor_id": "A-1", "a": 1}', "'event_time' is missing"),
        ('{"sensor_id": "A-1", "event_time": {}, "a": 1}', "'event_time' is neither a string nor a number"),
        (
            '{"sensor_id": "A-1", "event_time": 1458031648, "a": 1}',
            "'event_time' '1458031648' is not an ISO 8601 time (--time-unit)",
        ),
    ],
)
def test_json_without_sensor_or_time_is_refused(line: str, reason: str) -> None:
    """A line that is not an object, or whose sensor or time is missing or of another type, is refused."""
    assert read(f"\n{line}\n") == [Refusal(2, reason)]


@pytest.mark.parametrize("text", ["", "\n \r\n"])
def test_an_empty_file_is_an_error_at_once(text: str) -> None:
    """The error is raised before any record is read."""
    with pytest.raises(UnreadableFile, match=r"^it is empty$"):
        ndjson_records(Lines(io.StringIO(text, newline="")), maker())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("more", [1, 2, 3, 100, 70_000, 200_000])
def test_a_line_that_is_too_long_is_skipped(end: str, more: int) -> None:
    """It is refused with its number, whatever its length and line end; lines up to exactly the limit are read."""
    limit = len(GOOD) + len(end) + 10
    longest = GOOD + " " * 10
    records = read(end.join([GOOD, "x" * (limit + more), longest, "x" * (limit + more + 1), longest, "bad"]), limit)
    assert len(events(records)) == 3
    assert [(each.line, each.reason) for each in refusals(records)][:2] == [(2, too_long(limit)), (4, too_long(limit))]
    assert refusals(records)[2].line == 6


def test_the_limit_counts_bytes() -> None:
    """It counts bytes, not characters, and also applies to the first and the last line."""
    line = GOOD.replace("A-1", "é" * 40)
    size = len(line.encode())
    assert len(line) < size - 1
    assert [each.reason for each in refusals(read(line, size - 1))] == [too_long(size - 1)]
    assert too_long(size) not in [each.reason for each in refusals(read(line, size))]
