"""Alerts as requests: which message is an alert, what an answer means, and what was told before."""

import json

import pytest

from pipeline.core.alerts import alert_delivery
from pipeline.core.alerts.alert_delivery import Answer, ReceivedAlert, ToldAlerts, alert_in, meaning_of, wait_s
from pipeline.core.alerts.alert_messages import ALERT_TYPE
from pipeline.core.events.message import Message

ALERT = {"table": "t", "rule": "warm", "kind": "firing", "sensor_id": "a\n", "number": 3, "event_id": "e"}


def message(content, message_type=ALERT_TYPE):
    return Message(json.dumps(content).encode(), {"message_type": message_type}, "7")


def test_alerts():
    """Alerts of a table, a rule and a sensor are a series; a summary, which has no number, is one of its own."""
    alert = alert_in(message(ALERT))
    assert alert == (("t", "warm", "a\n"), 3, "e")
    assert str(alert) == "alert 3 of t warm a\\n (event_id e)"
    summary = {"table": "t", "rule": "warm", "kind": "summary", "event_id": "s"}
    assert alert_in(message(summary)) == (("t", "warm", "s"), 0, "s")


@pytest.mark.parametrize(
    "bad",
    [
        message(ALERT, "tidetable.v1.WindowResult"),
        message({**ALERT, "number": "3"}),
        message([ALERT]),
        Message(b"hello", {"message_type": ALERT_TYPE}, "7"),
    ],
    ids=["type", "number", "list", "text"],
)
def test_what_is_no_alert(bad):
    """A message of another type or content is refused, by its id."""
    with pytest.raises(ValueError, match=r"^message 7 is no tidetable\.v1\.Alert$"):
        alert_in(bad)


def test_answers():
    """Only 2xx is a delivery, and only what may pass is tried again; a redirect is not followed."""
    meant = {status: meaning_of(status) for status in (200, 204, 299, 301, 307, 400, 404, 408, 410, 429, 500, 503)}
    assert {status for status, answer in meant.items() if answer is Answer.DELIVERED} == {200, 204, 299}
    assert {status for status, answer in meant.items() if answer is Answer.AGAIN} == {408, 429, 500, 503}


@pytest.mark.parametrize(
    ("tries", "retry_after", "seconds"),
    [
        (1, "", 1),
        (4, "", 8),
        (9, "", 60),
        (1, "7", 7),
        (4, "7", 8),
        (1, "9" * 5000, 60),
        (1, "Thu, 01 Jan 1970 00:00:40 GMT", 30),
        (1, "Wed, 21 Oct 2099 07:28:00 GMT", 60),
        (1, "Wed, 31 Dec 1969 00:00:00 GMT", 1),
        (1, "-5", 1),
        (1, "soon", 1),
    ],
)
def test_waits(tries, retry_after, seconds):
    """Waits double, or are what the receiver asks for, but never more than a minute."""
    assert wait_s(tries, retry_after, 10.0) == seconds


def test_what_was_told(monkeypatch):
    """An alert is stale if it was delivered, or a newer one of its series; only the latest ones are remembered."""
    monkeypatch.setattr(alert_delivery, "_MOST_REMEMBERED", 6)
    told = ToldAlerts()
    told.add(ReceivedAlert(("t", "warm", "a"), 3, "three"))
    assert ReceivedAlert(("t", "warm", "a"), 3, "three") in told
    assert ReceivedAlert(("t", "warm", "a"), 2, "two") in told
    assert ReceivedAlert(("t", "warm", "a"), 4, "four") not in told
    assert ReceivedAlert(("t", "warm", "b"), -2, "of another sensor, before 1970") not in told
    for n in range(3):
        told.add(ReceivedAlert(("t", "warm", f"other-{n}"), 1, f"other-{n}"))
    assert ReceivedAlert(("t", "warm", "a"), 2, "two") not in told
