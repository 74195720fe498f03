from types import SimpleNamespace

import pytest
from apache_beam import DoFn
from apache_beam.coders import BooleanCoder
from apache_beam.transforms import userstate
from apache_beam.transforms.core import CallableWrapperDoFn
from google.api_core.exceptions import NotFound, ServiceUnavailable
from google.pubsub_v1.types import PubsubMessage, PullResponse, ReceivedMessage

from pipeline.private_apis import direct_runner
from pipeline.private_apis.direct_runner import PullGate, patched_direct_runner


def response(*payloads):
    return PullResponse(
        received_messages=[ReceivedMessage(ack_id=str(data), message=PubsubMessage(data=data)) for data in payloads]
    )


@pytest.fixture
def pull(monkeypatch):
    """Returns the payloads of a pull whose client answers so, and how many messages each request asked for."""

    def pulled(*answers):
        asked = []
        remaining = list(answers)

        def answer(**request):
            asked.append(request["max_messages"])
            assert request["timeout"] == 10  # what a pull that is cut short has been handed waits for its deadline
            given = remaining.pop(0)
            if isinstance(given, Exception):
                raise given
            return given

        monkeypatch.setattr(direct_runner, "subscriber_client", lambda: SimpleNamespace(pull=answer))
        given = PullGate().pull(subscription="s")
        return [received.message.data for received in given.received_messages], asked

    monkeypatch.setattr(direct_runner, "_AWAY_S", 0)
    return pulled


def test_pulls_are_put_together(pull):
    """Pub/Sub may return fewer messages than there are; the gate pulls until it returns none."""
    assert pull(response(b"1", b"2"), response(b"3"), response()) == ([b"1", b"2", b"3"], [1000, 998, 997])


def test_enough_messages(pull, monkeypatch):
    """A pull never returns more messages than the gate asks for."""
    monkeypatch.setattr(direct_runner, "_MESSAGES_PER_PULL", 3)
    assert pull(response(b"1", b"2"), response(b"3")) == ([b"1", b"2", b"3"], [3, 1])


def test_enough_bytes(pull, monkeypatch):
    """The gate stops pulling when it has enough bytes."""
    monkeypatch.setattr(direct_runner, "_ENOUGH_BYTES", 1000)
    assert pull(response(b"1"), response(b"2" * 1000)) == ([b"1", b"2" * 1000], [1000, 999])


def test_away_after_the_first(pull):
    """Messages pulled before Pub/Sub goes away are returned; if there are none, the pull is empty."""
    assert pull(response(b"1"), ServiceUnavailable("away")) == ([b"1"], [1000, 999])
    assert pull(ServiceUnavailable("away")) == ([], [1000])


def test_refused_after_the_first(pull):
    """Messages pulled before an error are returned; the next pull raises the error."""
    assert pull(response(b"1"), NotFound("gone")) == ([b"1"], [1000, 999])
    with pytest.raises(NotFound):
        pull(NotFound("gone"))


def test_a_trickle(pull, monkeypatch):
    """The gate returns the first message although others still arrive one by one."""
    monkeypatch.setattr(direct_runner, "_ENOUGH_S", 0)
    assert pull(response(b"1"), response(b"2")) == ([b"1"], [1000])


def test_the_longest_wait(monkeypatch):
    """A message's time ends with the pull after it was acknowledged and processed. Each is reported once."""
    old = response(b"1", b"2")
    for received, seconds in zip(old.received_messages, (98, 93), strict=True):
        received.message.publish_time = {"seconds": seconds}
    answers = iter([old, response(), response()])
    client = SimpleNamespace(pull=lambda **_: next(answers), acknowledge=lambda **_: None)
    monkeypatch.setattr(direct_runner, "subscriber_client", lambda: client)
    clock = SimpleNamespace(time=lambda: 100.0, monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(direct_runner, "time", clock)
    gate = PullGate()
    gate.pull(subscription="s")
    gate.pull(subscription="s")  # the runner failed at the first, and gets the same messages
    assert gate.longest_wait_s() is None
    gate.acknowledge(subscription="s", ack_ids=["1", "2"])
    assert gate.longest_wait_s() is None
    gate.pull(subscription="s")
    assert (gate.longest_wait_s(), gate.longest_wait_s()) == (7.0, None)


class _Counting(DoFn):
    inspected = 0

    def process(self, element, seen=DoFn.StateParam(userstate.ReadModifyWriteStateSpec("seen", BooleanCoder()))):  # noqa: B008
        pass

    def __dir__(self):
        _Counting.inspected += 1
        return super().__dir__()


def test_a_dofn_is_inspected_once(pubsub, monkeypatch):
    """The class of a DoFn is inspected for its first bundle only; functions are inspected each time."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub)
    with patched_direct_runner():
        assert all(userstate.is_stateful_dofn(_Counting()) for _ in range(3))
        assert _Counting.inspected == 1
        assert not userstate.is_stateful_dofn(CallableWrapperDoFn(lambda x: [x]))
