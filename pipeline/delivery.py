"""Delivers the alerts of a subscription to a URL, a request each."""

import hashlib
import hmac
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import SplitResult

import click
import requests

from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.core.alerts.alert_messages import ALERT_TYPE
from pipeline.core.events.message import MESSAGE_TYPE, Message
from pipeline.core.notation.documents import parse_json
from pipeline.core.notation.text import plain
from pipeline.core.notation.web import is_loopback

_MOST_HELD = 1000
_MOST_TRIES = 8  # over two minutes
_BACK_AFTER_S = 60  # a message that Pub/Sub delivered again at once would make a flood of requests
_TIMEOUTS_S = (5.0, 10.0)  # to connect, and for each part of the answer
_IDLE_S, _END_S = 0.2, 3.0
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


@dataclass
class _Held:
    message: Message
    alert: ReceivedAlert
    tries: int = 0
    due_s: float = 0.0


class AlertDelivery:
    """Delivers alerts, those of a rule and a sensor in order. One that fails holds up only later ones of its series.

    Attributes:
        counts: the numbers of alerts that were delivered, dropped and left on the subscription.
    """

    def __init__(self, backlog: Backlog, url: SplitResult, key: bytes | None, once: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._backlog, self._url, self._key, self._once = backlog, url, key, once
        self._held, self._told = dict[str, _Held](), ToldAlerts()
        self._session = requests.Session()
        self._session.trust_env = not is_loopback(url.hostname or "")  # a proxy must not get what stays on this machine
        self._session.auth = lambda request: request  # else requests would send passwords from ~/.netrc

    def run(self, stopped: Callable[[], bool]) -> None:
        """Delivers until it is stopped, or if ``once``, until nothing has come for three seconds."""
        busy_s = time.monotonic()
        while not stopped():
            pulled = next(self._backlog.pages(_MOST_HELD, first=_MOST_HELD, wait_seconds=0), [])
            for message in pulled:
                try:
                    self._held[message.message_id] = _Held(message, alert_in(message))
                except ValueError as error:
                    self._leave(message, str(error))
            if self._held:
                self._deliver(stopped)
                busy_s = time.monotonic()
            elif self._once and time.monotonic() - busy_s >= _END_S:
                return
            time.sleep(0 if pulled else _IDLE_S)

    def _deliver(self, stopped: Callable[[], bool]) -> None:
        waiting = set[tuple[str, ...]]()
        for held in sorted(self._held.values(), key=lambda held: held.alert.number):
            if held.alert.series not in waiting and not stopped():
                if held.due_s <= time.monotonic() and self._settled(held):
                    del self._held[held.message.message_id]
                else:
                    waiting.add(held.alert.series)

    def _settled(self, held: _Held) -> bool:
        """Sends an alert. Returns whether it needs no other try."""
        if held.alert in self._told:
            click.echo(f"{held.alert}: it, or a later one, was delivered before; dropped", err=True)
            self._acknowledge(held.message, "dropped")
            return True
        answer, said, retry_after = self._post(held.message.data)
        held.tries += 1
        if answer is Answer.DELIVERED:
            self._told.add(held.alert)
            self._acknowledge(held.message, "delivered")
        elif answer is Answer.REFUSED or held.tries == _MOST_TRIES:
            self._leave(held.message, f"{held.alert}: {said}")
        else:
            if held.tries == 1:
                click.echo(f"{held.alert}: {said}; tries follow for two minutes", err=True)
            held.due_s = time.monotonic() + wait_s(held.tries, retry_after, time.time())
            return False
        return True

    def _post(self, body: bytes) -> tuple[Answer, str, str]:
        """Returns the meaning of the answer, what to say of it without the URL's secrets, and its Retry-After."""
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["X-Tidetable-Signature"] = signature(self._key, int(time.time()), body)
        how: dict[str, Any] = {"timeout": _TIMEOUTS_S, "allow_redirects": False, "stream": True}
        try:
            with self._session.post(self._url.geturl(), body, headers=headers, **how) as answer:
                said = f"{self._url.hostname} answered {answer.status_code}"
                return meaning_of(answer.status_code), said, answer.headers.get("Retry-After", "")
        except requests.RequestException as error:
            return Answer.AGAIN, f"{self._url.hostname} did not answer: {type(error).__name__}", ""

    def _acknowledge(self, message: Message, outcome: str) -> None:
        self._backlog.acknowledge([message])
        self._backlog.forget(message, 0)
        self.counts[outcome] += 1

    def _leave(self, message: Message, problem: str) -> None:
        click.echo(f"{problem}; left on the subscription", err=True)
        if not self._once:  # else it stays leased, and is returned at the end
            self._backlog.forget(message, _BACK_AFTER_S)
        self.counts["left"] += 1
