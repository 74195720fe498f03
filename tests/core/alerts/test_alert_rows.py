"""Tests of the rows and the messages of alerts."""

import json
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.alert_messages import MOST_TOLD, alert_of, messages_of
from pipeline.core.alerts.alert_rows import FAMILY, alert_key, alert_row, parse_alert_key, parse_alert_row
from pipeline.core.alerts.machine import FIRING, PENDING, RESOLVED, Transition
from pipeline.core.alerts.rules import AlertCondition, Rule
from pipeline.core.rows.rows import Cell, Row
from tests.support.alerts import in_order
from tests.support.rows import decoded

_RULE = Rule("warm", metric="temperature", condition=AlertCondition("above", 10, 10), for_us=1_000_000, severity="page")
_START_US = 1_771_322_400_000_000


@given(st.lists(st.sampled_from([5.0, 11.0]), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_a_row_contains_what_happened(numbers: list[float], random: Random) -> None:
    """However its cells come, also within a millisecond, the row tells the transitions in order, and the track."""
    rule = replace(_RULE, for_us=1000)
    found = in_order(rule, {_START_US + index * 400: number for index, number in enumerate(numbers)})
    cells = [cell for each in found for cell in decoded(alert_row(rule, "sensor-1", [each])).cells]
    random.shuffle(cells)
    if cells:
        record = parse_alert_row(Row(b"alert#warm#sensor-1", cells))
        assert list(record.transitions) == found
        track = record.track()
        assert (track.rule_id, track.time_us, track.told) == (rule.id, found[-1].time_us, found[-1].kind == FIRING)
        assert record.is_open is (track.phase in (FIRING, PENDING))


@pytest.mark.parametrize("key", [b"alert#", b"alert#a", b"alert#a#b#c", b"alert##b", b"alert#a#\xff", b"latest#a#b"])
def test_other_keys(key: bytes) -> None:
    """Keys of another form are refused."""
    with pytest.raises(ValueError, match=r"form alert#RULE#SENSOR|be a sensor's id"):
        parse_alert_key(key)


_WRONG_TIME = b'{"time_us": 1e999, "since_us": 0, "value": 1, "severity": "a", "revision": ""}'

_NO_TIME = _WRONG_TIME.replace(b"1e999", b"1").replace(b'"since_us": 0', b'"since_us": 1000000000000000000')


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"time_us": "x"}', _WRONG_TIME, b"[" * 100_000, _NO_TIME])
def test_other_cells(value: bytes) -> None:
    """Cells without a transition are refused."""
    with pytest.raises(ValueError, match="contains no transition"):
        parse_alert_row(Row(alert_key("a", "b"), [Cell(FAMILY, b"firing", 0, value)]))


def test_messages() -> None:
    """A message says what fires and why; the same transition has the same id."""
    firing, resolved = Transition(_START_US, FIRING, 11, _START_US - 3), Transition(_START_US + 1, RESOLVED, 9, 0)
    alerts = [alert_of(_RULE, "sensor-1", each, "table", "°C", "Air") for each in (firing, firing, resolved)]
    first, second = messages_of(alerts)
    assert json.loads(first.data) | {"event_id": ""} == {
        "rule": "warm",
        "kind": "firing",
        "sensor_id": "sensor-1",
        "event_time": "2026-02-17T10:00:00Z",
        "since": "2026-02-17T09:59:59.999997Z",
        "value": 11,
        "unit": "°C",
        "label": "Air",
        "condition": "temperature above 10 for 1s",
        "severity": "page",
        "table": "table",
        "number": _START_US,
        "event_id": "",
    }
    assert first.attributes["event_id"] != second.attributes["event_id"]
    assert second.attributes["kind"] == "resolved"


def test_numbers_are_json() -> None:
    """JSON has no infinity: such a value is text."""
    (message,) = messages_of([alert_of(_RULE, "a", Transition(_START_US, FIRING, math.inf, _START_US), "table")])
    assert json.loads(message.data, parse_constant=pytest.fail)["value"] == "inf"
    row = decoded(alert_row(_RULE, "a", [Transition(_START_US, FIRING, math.inf, _START_US)]))
    assert json.loads(row.cells[0].value, parse_constant=pytest.fail)
    assert parse_alert_row(row).transitions[0].value == math.inf


def test_a_storm_is_one_message() -> None:
    """More than a hundred transitions told together become one message, the same in any order."""
    alerts = [
        alert_of(_RULE, f"sensor-{number}", Transition(_START_US + number, FIRING, 11, _START_US), "table")
        for number in range(MOST_TOLD + 1)
    ]
    (message,) = messages_of(alerts)
    content = json.loads(message.data)
    assert (content["kind"], content["rule"], content["firing"]) == ("summary", "warm", MOST_TOLD + 1)
    assert (content["since"], content["event_time"]) == ("2026-02-17T10:00:00Z", "2026-02-17T10:00:00.000100Z")
    assert content["sensors"] == sorted(f"sensor-{number}" for number in range(MOST_TOLD + 1))[:10]
    assert messages_of([*alerts[::-1], *alerts]) == [message]
    assert len(messages_of(alerts[1:])) == MOST_TOLD
