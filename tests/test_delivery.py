"""``tidetable alerts deliver``, to a receiver on this machine."""

import base64
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result
from google.cloud.pubsub_v1 import PublisherClient

from pipeline import delivery
from pipeline.cli.root import main
from pipeline.cloud.pubsub.backlog import Backlog
from pipeline.core.alerts.alert_messages import ALERT_TYPE, alert_of, messages_of
from pipeline.core.alerts.machine import FIRING, Transition
from pipeline.core.alerts.rules import parse_rules
from pipeline.core.events.message import Message
from pipeline.core.schema.table_schema import TableSchema
from pipeline.delivery import Answer, ReceivedAlert, ToldAlerts, alert_in, meaning_of, signature, wait_s
from tests.support.pubsub import Inbox
from tests.support.waiting import eventually

_RULES = '[[rule]]\nname = "warm"\nmetric = "t"\nabove = 10\n'
_KEY = b"0123456789abcdef"


class _Receiver:
    """Answers what its script tells for the number of a request's alert, the last for good; 200 without a script."""

    def __init__(self) -> None:
        self.script: dict[int, list[int]] = {}
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    @property
    def numbers(self) -> list[int]:
        return [json.loads(body)["number"] for _, body in self.requests]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests.append((dict(request.headers), body))
        answers = self.script.get(json.loads(body).get("number"), [200])
        status = answers.pop(0) if len(answers) > 1 else answers[0]
        if not status:  # never answers
            threading.Event().wait(2)
            return
        request.send_response(status)
        request.send_header("Location", self.url)
        request.send_header("Content-Length", "0")
        request.end_headers()


@contextmanager
def _receiving() -> Iterator[_Receiver]:
    receiver = _Receiver()

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/secret"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Receiver]:
    """A receiver, for a command that soon gives up."""
    monkeypatch.setattr(delivery, "_END_S", 1.0)
    monkeypatch.setattr(delivery, "_MOST_TRIES", 2)
    monkeypatch.setattr(delivery, "_BACK_AFTER_S", 1)
    monkeypatch.setattr(delivery, "_TIMEOUTS_S", (0.5, 0.5))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # not for what stays on this machine
    with _receiving() as receiver:
        yield receiver


@pytest.fixture
def inbox(pubsub: str) -> Inbox:
    """A topic and its subscription."""
    return Inbox()


def _alert(number: int, sensor_id: str = "a") -> Message:
    (rule,) = parse_rules(_RULES, "rules", TableSchema.for_new_table())
    (message,) = messages_of([alert_of(rule, sensor_id, Transition(number, FIRING, 12.5, number), "sensors")])
    return message


def _of_the_page(name: str) -> Any:
    """Returns a function of the page on alerts."""
    page = (Path(__file__).parent.parent / "docs/alerts.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        if f"def {name}(" in code:
            exec(code, names)  # noqa: S102 (readers run it too)
    return names[name]


def _publish(inbox: Inbox, *messages: Message) -> None:
    publisher = PublisherClient()
    for message in messages:
        publisher.publish(inbox.topic, message.data, **message.attributes).result(30)


def _deliver(inbox: Inbox, receiver: _Receiver, *options: str) -> Result:
    command = [
        "alerts",
        "deliver",
        "--alerts-subscription",
        inbox.subscription,
        "--url",
        receiver.url,
        "--once",
        *options,
    ]
    return CliRunner().invoke(main, command)


def _deliver_until(
    inbox: Inbox, receiver: _Receiver, done: Callable[[delivery.AlertDelivery], bool]
) -> delivery.AlertDelivery:
    """Delivers until a condition holds, or for 30 seconds, as the command does until Ctrl-C."""
    end_s = time.monotonic() + 30
    with Backlog(inbox.subscription) as backlog:
        found = delivery.AlertDelivery(backlog, urlsplit(receiver.url), None, once=False)
        found.run(lambda: done(found) or time.monotonic() > end_s)
    return found


def _waiting(inbox: Inbox) -> list[int]:
    """Returns the numbers of the alerts that are still on the subscription."""
    with Backlog(inbox.subscription) as backlog:
        pages = list(backlog.pages(100, first=100, wait_seconds=0.5))
    return sorted(json.loads(message.data)["number"] for page in pages for message in page)


def test_each_once_in_order(inbox, receiver):
    """Each alert is one request with the message's JSON, in order and once, however often it was published."""
    messages = [_alert(3), _alert(1), _alert(2), _alert(3), _alert(7, "b")]
    _publish(inbox, *messages)
    ran = _deliver(inbox, receiver)
    assert (ran.exit_code, ran.stdout) == (0, "alerts: 4 delivered, 1 dropped, 0 left\n")
    assert receiver.numbers == [1, 2, 3, 7]
    assert {body for _, body in receiver.requests} == {message.data for message in messages}
    assert {headers["Content-Type"] for headers, _ in receiver.requests} == {"application/json"}
    assert not any("Authorization" in headers or "X-Tidetable-Signature" in headers for headers, _ in receiver.requests)
    assert _waiting(inbox) == []


def test_signed(inbox, receiver, tmp_path):
    """With a key, the page's function can tell that the body is ours, and a forged or old request that it is not."""
    (tmp_path / "key").write_text(f"{_KEY.decode()}\n")
    _publish(inbox, _alert(1))
    ran = _deliver(inbox, receiver, "--key-file", str(tmp_path / "key"))
    assert ran.exit_code == 0
    [(headers, body)] = receiver.requests
    header, is_ours = headers["X-Tidetable-Signature"], _of_the_page("is_ours")
    assert is_ours(header, body, _KEY)
    assert not is_ours(header, body + b" ", _KEY)
    assert not is_ours(header, body, b"other")
    assert not is_ours(signature(_KEY, int(time.time()) - 400, body), body, _KEY)
    assert _KEY.decode() not in ran.output


def test_trouble_that_passes(inbox, receiver):
    """An alert that fails waits and is tried again. Only newer ones of its rule and sensor wait for it."""
    receiver.script = {1: [503, 200], 3: [0, 200]}
    _publish(inbox, _alert(1), _alert(2), _alert(3, "b"), _alert(4, "c"))
    ran = _deliver(inbox, receiver)
    assert (ran.exit_code, ran.stdout) == (0, "alerts: 4 delivered, 0 dropped, 0 left\n")
    assert receiver.numbers == [1, 3, 4, 1, 2, 3]
    first, second = sorted(ran.stderr.splitlines())
    assert first.startswith("alert 1 of sensors warm a (event_id ")
    assert first.endswith("): 127.0.0.1 answered 503; tries follow for two minutes")
    assert "127.0.0.1 did not answer: ReadTimeout" in second
    assert "secret" not in ran.stderr


def test_refusals(inbox, receiver):
    """What is refused, or fails for long, has a line, stays, and keeps nothing back. No redirect is followed."""
    receiver.script = {1: [400], 3: [302], 4: [500]}
    _publish(inbox, _alert(1), _alert(2), _alert(3, "b"), _alert(4, "c"), Message(b'{"number": 9}', {}))
    ran = _deliver(inbox, receiver)
    assert (ran.exit_code, ran.stdout) == (1, "alerts: 1 delivered, 0 dropped, 4 left\n")
    assert receiver.numbers == [1, 2, 3, 4, 4]
    left = [line.removesuffix("; left on the subscription") for line in ran.stderr.splitlines() if "; left" in line]
    assert {line[-12:] for line in left} == {"answered 400", "answered 302", "answered 500", "ble.v1.Alert"}
    assert eventually(lambda: _waiting(inbox)) == [1, 3, 4, 9]


def test_refused_alerts_come_again(inbox, receiver):
    """A refused alert is sent again later, but not after a newer one of its rule and sensor."""
    receiver.script = {1: [400], 3: [400, 200]}
    _publish(inbox, _alert(1), _alert(2), _alert(3, "b"))
    counts = Counter(delivered=2, dropped=1, left=2)
    assert _deliver_until(inbox, receiver, lambda found: found.counts == counts).counts == counts
    assert receiver.numbers == [1, 2, 3, 3]
    assert _waiting(inbox) == []


def test_stopped(inbox, receiver):
    """What was not delivered is returned at once: to the next one who delivers, it is new."""
    receiver.script = {1: [503, 200]}
    _publish(inbox, _alert(1), _alert(2))
    _deliver_until(inbox, receiver, lambda _: bool(receiver.requests))
    assert eventually(lambda: _waiting(inbox)) == [1, 2]


def test_nobody_answers(inbox, receiver):
    """Without a receiver, everything stays."""
    receiver.url = "http://127.0.0.1:1/secret"
    _publish(inbox, _alert(1))
    ran = _deliver(inbox, receiver)
    assert (ran.exit_code, ran.stdout) == (1, "alerts: 0 delivered, 0 dropped, 1 left\n")
    assert ran.stderr.endswith("127.0.0.1 did not answer: ConnectionError; left on the subscription\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--url", "http://example.com/secret"], "use https://, or add --insecure-http"),
        (["--url", "https://me:secret@example.com"], "remove the user and password"),
        (["--url", "https://example.com", "--key-file", "/dev/null"], "/dev/null does not contain one token"),
        (["--url", "https://example.com", "--key-file", "missing"], "'missing' does not exist"),
    ],
)
def test_usage(options, problem):
    """What would show alerts or secrets to others is refused in one line, before anything is read."""
    ran = CliRunner().invoke(
        main, ["alerts", "deliver", "--alerts-subscription", "projects/my-project/subscriptions/alerts", *options]
    )
    assert ran.exit_code == 2
    assert problem in ran.stderr.splitlines()[-1]
    assert "secret" not in ran.stderr


def test_the_function(receiver, monkeypatch):
    """The page's function tells a chat of each alert, and by mail of those that should wake somebody."""
    framework = ModuleType("functions_framework")
    framework.cloud_event = lambda function: function
    monkeypatch.setitem(sys.modules, "functions_framework", framework)
    mails = []
    server = SimpleNamespace(login=lambda *_: None, send_message=mails.append)
    monkeypatch.setattr("smtplib.SMTP_SSL", lambda *_, **__: nullcontext(server))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in {"CHAT_URL": receiver.url, "MAIL_FROM": "a@b.c", "MAIL_TO": "d@e.f"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MAIL_HOST", "mail")
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    on_alert = _of_the_page("on_alert")
    summary = {**json.loads(_alert(1).data), "kind": "summary", "sensors": ["a", "b"], "severity": "page"}
    del summary["sensor_id"]
    for data in (_alert(1, "a\nb").data, json.dumps(summary).encode()):
        on_alert(SimpleNamespace(data={"message": {"data": base64.b64encode(data)}}))
    texts = ["firing: warm, t above 10: a b", "summary: warm, t above 10: a, b and others"]
    assert [json.loads(body)["text"] for _, body in receiver.requests] == texts
    assert [mail["Subject"] for mail in mails] == texts[1:]


_ALERT = {"table": "t", "rule": "warm", "kind": "firing", "sensor_id": "a\n", "number": 3, "event_id": "e"}


def _alert_message(content, message_type=ALERT_TYPE):
    return Message(json.dumps(content).encode(), {"message_type": message_type}, "7")


def test_alerts():
    """Alerts of a table, a rule and a sensor are a series; a summary, which has no number, is one of its own."""
    alert = alert_in(_alert_message(_ALERT))
    assert alert == (("t", "warm", "a\n"), 3, "e")
    assert str(alert) == "alert 3 of t warm a\\n (event_id e)"
    summary = {"table": "t", "rule": "warm", "kind": "summary", "event_id": "s"}
    assert alert_in(_alert_message(summary)) == (("t", "warm", "s"), 0, "s")


@pytest.mark.parametrize(
    "bad",
    [
        _alert_message(_ALERT, "tidetable.v1.WindowResult"),
        _alert_message({**_ALERT, "number": "3"}),
        _alert_message([_ALERT]),
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
    monkeypatch.setattr(delivery, "_MOST_REMEMBERED", 6)
    told = ToldAlerts()
    told.add(ReceivedAlert(("t", "warm", "a"), 3, "three"))
    assert ReceivedAlert(("t", "warm", "a"), 3, "three") in told
    assert ReceivedAlert(("t", "warm", "a"), 2, "two") in told
    assert ReceivedAlert(("t", "warm", "a"), 4, "four") not in told
    assert ReceivedAlert(("t", "warm", "b"), -2, "of another sensor, before 1970") not in told
    for n in range(3):
        told.add(ReceivedAlert(("t", "warm", f"other-{n}"), 1, f"other-{n}"))
    assert ReceivedAlert(("t", "warm", "a"), 2, "two") not in told
