"""Tests of the rows and the messages of alerts."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.alerts.alert_messages import MOST_TOLD, alert_of, messages_of
from pipeline.core.alerts.alert_rows import FAMILY, alert_key, alert_row, parse_alert_key, parse_alert_row, restored
from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.machine import FIRING, NEVER_US, PENDING, RESOLVED, Track, Transition, Value, transitions
from pipeline.core.alerts.rules import Rule
from pipeline.core.rows.rows import Cell, Row
from tests.support.rows import decoded

_RULE = Rule("warm", metric="temperature", condition=AlertCondition("above", 10, 10), for_us=1_000_000, severity="page")
_START_US = 1_771_322_400_000_000


@given(st.permutations(range(12)), st.lists(st.sampled_from([5.0, 11.0]), min_size=12, max_size=12))
def test_a_row_contains_what_the_definition_says(order: list[int], numbers: list[float]) -> None:
    """Whatever a track adds and withdraws, also within a millisecond, the row tells the transitions in order."""
    rule = replace(_RULE, for_us=1000)
    values = [Value(_START_US + index * 400, number) for index, number in enumerate(numbers)]
    track, cells = Track(), dict[tuple[bytes, int], Cell]()
    for index in order:
        changes = track.update(rule, [values[index]], NEVER_US, 10_000_000)
        if changes.added or changes.withdrawn:
            row = decoded(alert_row(rule, "sensor-1", changes.added, changes.withdrawn, track))
            assert row.key == b"alert#warm#sensor-1"
            cells |= {(cell.qualifier, cell.timestamp_us): cell for cell in row.cells}
    expected, state = transitions(rule, values)
    if cells:
        record = parse_alert_row(Row(b"alert#warm#sensor-1", list(cells.values())))
        assert list(record.transitions) == expected
        assert record.is_firing is state.firing
        assert record.version == track.version


def test_a_restored_track_goes_on() -> None:
    """From the last transition in its row, a track goes on without telling anything again."""
    firing = _restored(Transition(7, FIRING, 11, 2))
    assert not firing.update(_RULE, [Value(9, 12)], NEVER_US, 100).told
    assert [each.kind for each in firing.update(_RULE, [Value(10, 5)], NEVER_US, 100).told] == [RESOLVED]
    pending = _restored(Transition(2, PENDING, 11, 2))
    changes = pending.update(_RULE, [], 1_000_003, 100)
    assert changes.told == changes.added == [Transition(1_000_002, FIRING, 11, 2)]


def _restored(*history: Transition) -> Track:
    row = decoded(alert_row(_RULE, "a", history, [], Track(version=1)))
    return restored(parse_alert_row(row), _RULE.revision)


@pytest.mark.parametrize("key", [b"alert#", b"alert#a", b"alert#a#b#c", b"alert##b", b"alert#a#\xff", b"latest#a#b"])
def test_other_keys(key: bytes) -> None:
    """Keys of another form are refused."""
    with pytest.raises(ValueError, match=r"form alert#RULE#SENSOR|be a sensor's id"):
        parse_alert_key(key)


_WRONG_TIME = b'{"time_us": 1e999, "since_us": 0, "value": 1, "severity": "a", "revision": "", "version": 1}'

_NO_TIME = _WRONG_TIME.replace(b"1e999", b"1").replace(b'"since_us": 0', b'"since_us": 1000000000000000000')


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"time_us": "x"}', _WRONG_TIME, b"[" * 100_000, _NO_TIME])
def test_other_cells(value: bytes) -> None:
    """Cells without a transition are refused."""
    with pytest.raises(ValueError, match="contains no transition"):
        parse_alert_row(Row(alert_key("a", "b"), [Cell(FAMILY, b"firing", 0, value)]))


def test_messages() -> None:
    """A message says what fires and why; the same transition has the same id."""
    firing, resolved = Transition(_START_US, FIRING, 11, _START_US - 3), Transition(_START_US + 1, RESOLVED, 9, 0)
    alerts = [
        alert_of(_RULE, "sensor-1", *each)
        for each in ((firing, "table", 7), (firing, "table", 7), (resolved, "table", 8))
    ]
    first, second = messages_of(alerts)
    assert json.loads(first.data) | {"event_id": ""} == {
        "rule": "warm",
        "kind": "firing",
        "sensor_id": "sensor-1",
        "event_time": "2026-02-17T10:00:00Z",
        "since": "2026-02-17T09:59:59.999997Z",
        "value": 11,
        "condition": "temperature above 10 for 1s",
        "severity": "page",
        "table": "table",
        "number": 7,
        "event_id": "",
    }
    assert first.attributes["event_id"] != second.attributes["event_id"]
    assert second.attributes["kind"] == "resolved"


def test_numbers_are_json() -> None:
    """JSON has no infinity: such a value is text."""
    (message,) = messages_of([alert_of(_RULE, "a", Transition(_START_US, FIRING, math.inf, _START_US), "table", 1)])
    assert json.loads(message.data, parse_constant=pytest.fail)["value"] == "inf"
    row = decoded(alert_row(_RULE, "a", [Transition(_START_US, FIRING, math.inf, _START_US)], [], Track()))
    assert json.loads(row.cells[0].value, parse_constant=pytest.fail)
    assert parse_alert_row(row).transitions[0].value == math.inf


def test_a_storm_is_one_message() -> None:
    """More than a hundred transitions told together become one message, the same in any order."""
    alerts = [
        alert_of(_RULE, f"sensor-{number}", Transition(_START_US + number, FIRING, 11, _START_US), "table", 1)
        for number in range(MOST_TOLD + 1)
    ]
    (message,) = messages_of(alerts)
    content = json.loads(message.data)
    assert (content["kind"], content["rule"], content["firing"]) == ("summary", "warm", MOST_TOLD + 1)
    assert (content["since"], content["event_time"]) == ("2026-02-17T10:00:00Z", "2026-02-17T10:00:00.000100Z")
    assert content["sensors"] == sorted(f"sensor-{number}" for number in range(MOST_TOLD + 1))[:10]
    assert messages_of([*alerts[::-1], *alerts]) == [message]
    assert len(messages_of(alerts[1:])) == MOST_TOLD
