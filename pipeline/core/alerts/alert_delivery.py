"""Alerts as requests to a URL: the signature, the meaning of an answer, and which alerts are stale."""

import hashlib
import hmac
from collections import OrderedDict
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import NamedTuple

from pipeline.core.alerts.alert_messages import ALERT_TYPE
from pipeline.core.events.message import MESSAGE_TYPE, Message
from pipeline.core.notation.documents import parse_json
from pipeline.core.notation.text import plain

_LONGEST_WAIT_S = 60.0
_MOST_REMEMBERED = 200_000

Answer = Enum("Answer", ["DELIVERED", "AGAIN", "REFUSED"])
"""What the answer to a request means for its alert."""


class ReceivedAlert(NamedTuple):
    """The table, rule and sensor of an alert, its number among theirs, and ``event_id``; a summary has no sensor."""

    series: tuple[str, ...]
    number: int
    id: str

    def __str__(self) -> str:
        return plain(f"alert {self.number} of {' '.join(self.series)} (event_id {self.id})")


def alert_in(message: Message) -> ReceivedAlert:
    """Returns the alert in a message. Raises ValueError if it is none."""
    try:
        content = parse_json(message.data) if message.attributes.get(MESSAGE_TYPE) == ALERT_TYPE else None
    except ValueError:
        content = None
    match content:
        case {"kind": "summary", "table": str(table), "rule": str(rule), "event_id": str(id_)}:
            return ReceivedAlert((table, rule, id_), 0, id_)  # a series of its own
        case {"table": str(table), "rule": str(rule), "sensor_id": str(sensor), "number": int(n), "event_id": str(id_)}:
            return ReceivedAlert((table, rule, sensor), n, id_)
    raise ValueError(f"message {message.message_id} is no {ALERT_TYPE}")


def signature(key: bytes, now_s: int, body: bytes) -> str:
    """Returns the header by which a receiver that has the key knows that the body is ours, and when it was sent."""
    return f"t={now_s},v1={hmac.new(key, b'%d.%b' % (now_s, body), hashlib.sha256).hexdigest()}"


def meaning_of(status: int) -> Answer:
    """Returns what an HTTP status means. A redirect is a refusal: the alerts are for one receiver."""
    if 200 <= status < 300:
        return Answer.DELIVERED
    return Answer.AGAIN if status >= 500 or status in (408, 429) else Answer.REFUSED


def wait_s(tries: int, retry_after: str, now_s: float) -> float:
    """Returns the seconds until the next try: twice those before it, or as many as the header Retry-After asks for."""
    try:
        asked = (
            float(retry_after) if retry_after.isdecimal() else parsedate_to_datetime(retry_after).timestamp() - now_s
        )
    except (ValueError, OverflowError):
        asked = 0.0
    return min(max(2.0 ** (tries - 1), asked), _LONGEST_WAIT_S)


class ToldAlerts:
    """The alerts that were delivered lately: those whose delivery would repeat one, or come after a newer one."""

    def __init__(self) -> None:
        self._told: OrderedDict[str | tuple[str, ...], int] = OrderedDict()  # numbers by event_id and by series

    def __contains__(self, alert: ReceivedAlert) -> bool:
        return alert.id in self._told or alert.number < self._told.get(alert.series, alert.number)

    def add(self, alert: ReceivedAlert) -> None:
        """Remembers an alert."""
        for key in (alert.id, alert.series):
            self._told[key] = alert.number
            self._told.move_to_end(key)
        while len(self._told) > _MOST_REMEMBERED:
            self._told.popitem(last=False)
