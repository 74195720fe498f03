import threading
from types import SimpleNamespace

import pytest
from apache_beam import DoFn, FlatMap, Map, ParDo, Pipeline, Reshuffle, WithKeys
from apache_beam.coders import BooleanCoder, BytesCoder
from apache_beam.io.gcp.pubsub import PubsubMessage as BeamMessage
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import userstate
from apache_beam.transforms.core import CallableWrapperDoFn
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.utils.timestamp import Timestamp
from google.api_core.exceptions import DeadlineExceeded, FailedPrecondition, NotFound, ServiceUnavailable
from google.pubsub_v1.types import PubsubMessage, PullResponse, ReceivedMessage

from pipeline.private_apis import direct_runner
from pipeline.private_apis.direct_runner import PullGate, patched_direct_runner
from tests.support.waiting import eventually


def response(*payloads):
    return PullResponse(
        received_messages=[
            ReceivedMessage(ack_id=data.decode(), message=PubsubMessage(data=data, publish_time={"seconds": 1}))
            for data in payloads
        ]
    )


def payloads(gate):
    """Pulls; returns the payloads of the only element, if there is one."""
    return [message.data for _, messages in gate.pull("s") for message in messages]


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
        return payloads(PullGate()), asked

    monkeypatch.setattr(direct_runner, "_AWAY_S", 0)
    return pulled


def test_pulls_are_put_together(pull):
    """Pub/Sub may return fewer messages than there are; the gate pulls until it returns none."""
    assert pull(response(b"1", b"2"), response(b"3"), response()) == ([b"1", b"2", b"3"], [1000] * 3)


def test_enough_messages(pull, monkeypatch):
    """A pull never returns more messages than the gate asks for."""
    monkeypatch.setattr(direct_runner, "_ENOUGH_MESSAGES", 3)
    assert pull(response(b"1", b"2"), response(b"3")) == ([b"1", b"2", b"3"], [3, 1])


def test_enough_bytes(pull, monkeypatch):
    """The gate stops pulling when it has enough bytes."""
    monkeypatch.setattr(direct_runner, "_ENOUGH_BYTES", 1000)
    assert pull(response(b"1"), response(b"2" * 1000)) == ([b"1", b"2" * 1000], [1000] * 2)


def test_away_after_the_first(pull):
    """Messages pulled before Pub/Sub goes away are returned; if there are none, the pull is empty."""
    assert pull(response(b"1"), ServiceUnavailable("away")) == ([b"1"], [1000] * 2)
    assert pull(ServiceUnavailable("away")) == ([], [1000])


def test_refused_after_the_first(pull):
    """Messages pulled before an error are returned; the next pull raises the error."""
    assert pull(response(b"1"), NotFound("gone")) == ([b"1"], [1000] * 2)
    with pytest.raises(NotFound):
        pull(NotFound("gone"))


def test_a_trickle(pull, monkeypatch):
    """The gate returns the first message although others still arrive one by one."""
    monkeypatch.setattr(direct_runner, "_ENOUGH_S", 0)
    assert pull(response(b"1"), response(b"2")) == ([b"1"], [1000])


def test_the_longest_wait(monkeypatch):
    """A message's time goes on until the pull after it was processed. Then it is reported once."""
    old = response(b"1", b"2")
    for received, seconds in zip(old.received_messages, (98, 93), strict=True):
        received.message.publish_time = {"seconds": seconds}
    answers = iter([old, response(), response()])
    client = SimpleNamespace(pull=lambda **_: next(answers), acknowledge=lambda *_, **__: None)
    monkeypatch.setattr(direct_runner, "subscriber_client", lambda: client)
    clock = SimpleNamespace(time=lambda: 100.0, monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(direct_runner, "time", clock)
    gate = PullGate()
    assert gate.pull("s")[0][0] == Timestamp(93)
    gate.pull("s")  # the runner failed at the first, and gets the same messages
    assert gate.longest_wait_s() == 7.0
    gate.begin_bundle()
    clock.time = lambda: 160.0
    assert gate.longest_wait_s() == 67.0
    gate.pull("s")
    assert (gate.longest_wait_s(), gate.longest_wait_s()) == (67.0, None)


class FakeSubscriber:
    """Returns the given answers to pulls, and then nothing. Notes what is acknowledged, unless that fails."""

    def __init__(self, *answers):
        self.answers, self.acknowledged, self.extended, self.failures = list(answers), [], [], []

    def pull(self, **_):
        return self.answers.pop(0) if self.answers else response()

    def acknowledge(self, request, **_):
        if self.failures:
            raise self.failures.pop(0)
        self.acknowledged += request.ack_ids

    def modify_ack_deadline(self, ack_ids, **_):
        self.extended.append(ack_ids)


@pytest.fixture
def subscriber(monkeypatch):
    """A subscriber that every gate uses, with two messages; gates wait for nothing."""
    subscriber = FakeSubscriber(response(b"1", b"2"), response(), response(b"3"), response())
    monkeypatch.setattr(direct_runner, "subscriber_client", lambda: subscriber)
    monkeypatch.setattr(direct_runner, "_IDLE_S", 0.001)
    monkeypatch.setattr(direct_runner, "_AWAY_S", 0.001)
    return subscriber


def next_pull(gate):
    gate.begin_bundle()
    return payloads(gate)


def test_a_pull_is_acknowledged_at_the_next(subscriber):
    """The gate does not acknowledge what the runner has not processed, nor what it gets again in one bundle."""
    gate = PullGate()
    assert next_pull(gate) == [b"1", b"2"]
    assert payloads(gate) == [b"1", b"2"]
    assert subscriber.acknowledged == []
    assert next_pull(gate) == [b"3"]
    assert subscriber.acknowledged == ["1", "2"]


def test_a_pause_after_few_messages(subscriber, monkeypatch):
    """After a pull of few messages, the next waits a moment, so that it gets more. After one of many, it does not."""
    pauses = []
    clock = SimpleNamespace(time=lambda: 100.0, monotonic=lambda: 7.0, sleep=pauses.append)
    monkeypatch.setattr(direct_runner, "time", clock)
    gate = PullGate()
    assert next_pull(gate) == [b"1", b"2"]
    monkeypatch.setattr(direct_runner, "_MESSAGES_PER_REQUEST", 1)
    assert next_pull(gate) == [b"3"]
    assert next_pull(gate) == []
    assert pauses[:3] == pytest.approx([0.0, 0.05, 0.0])


def test_acknowledging_is_tried_again(subscriber):
    """While Pub/Sub is away, the gate pulls nothing more, and acknowledges the messages as soon as it can."""
    gate = PullGate()
    subscriber.failures = [ServiceUnavailable("away"), DeadlineExceeded("away")]
    assert [next_pull(gate) for _ in range(4)] == [[b"1", b"2"], [], [], [b"3"]]
    assert subscriber.acknowledged == ["1", "2"]


def test_an_acknowledgement_that_is_refused(subscriber, caplog):
    """The messages come again; the gate goes on, and says so."""
    gate = PullGate()
    subscriber.failures = [FailedPrecondition("PERMANENT_FAILURE_INVALID_ACK_ID")]
    assert [next_pull(gate) for _ in range(3)] == [[b"1", b"2"], [b"3"], []]
    assert subscriber.acknowledged == ["3"]
    assert "will come again: 400 PERMANENT_FAILURE_INVALID_ACK_ID" in caplog.text


def test_many_are_acknowledged_in_parts(subscriber, monkeypatch):
    """A request names as many messages as it may; what is refused does not keep the others."""
    monkeypatch.setattr(direct_runner, "_MESSAGES_PER_REQUEST", 1)
    gate = PullGate()
    assert next_pull(gate) == [b"1", b"2"]
    subscriber.failures = [FailedPrecondition("PERMANENT_FAILURE_INVALID_ACK_ID")]
    assert next_pull(gate) == [b"3"]
    assert subscriber.acknowledged == ["2"]


def test_messages_are_those_of_beam():
    """A message has all that Beam's own has, to the microsecond."""
    received = PubsubMessage(
        data=b"1", attributes={"a": "b"}, message_id="7", ordering_key="k", publish_time={"seconds": 1, "nanos": 2000}
    )
    message, expected = direct_runner._message(PubsubMessage.pb(received)), BeamMessage._from_message(received)
    assert vars(message) == vars(expected)


@pytest.mark.parametrize("is_away", [False, True])
def test_a_stop_acknowledges_what_is_written(subscriber, is_away):
    """The first pull after the gate is closed acknowledges, once: the next job gets again what could not be."""
    gate = PullGate()
    next_pull(gate)
    gate.close()
    assert not gate.wait_drained(0)
    subscriber.failures = [ServiceUnavailable("away")] * is_away
    assert [next_pull(gate) for _ in range(2)] == [[], []]
    assert gate.wait_drained(0)
    assert subscriber.acknowledged == ([] if is_away else ["1", "2"])


def test_a_process_that_may_not_read(subscriber):
    """It neither acknowledges nor pulls, until it may again. A stop does not wait for that."""
    may_read = [True]
    gate = PullGate(lambda: may_read[-1])
    assert next_pull(gate) == [b"1", b"2"]
    may_read.append(False)
    assert next_pull(gate) == []
    assert subscriber.acknowledged == []
    may_read.append(True)
    assert next_pull(gate) == [b"3"]
    may_read.append(False)
    gate.close()
    assert next_pull(gate) == []
    assert gate.wait_drained(0)
    assert subscriber.acknowledged == ["1", "2"]


def test_leases_of_a_long_pull_are_extended(subscriber, monkeypatch):
    """Leases are extended until the messages are processed, also if it fails once."""
    monkeypatch.setattr(direct_runner, "_EXTEND_EVERY_S", 0.001)
    gate, ended = PullGate(), threading.Event()
    thread = threading.Thread(target=gate.extend_leases, args=(ended,))
    thread.start()
    assert next_pull(gate) == [b"1", b"2"]
    eventually(lambda: len(subscriber.extended) > 2)
    assert next_pull(gate) == [b"3"]
    eventually(lambda: subscriber.extended[-1] == ["3"])
    ended.set()
    thread.join()
    assert {tuple(each) for each in subscriber.extended} == {("1", "2"), ("3",)}


SUBSCRIPTION = "projects/test-project/subscriptions/s"


def _payloads(messages):
    return [message.data for message in messages]


def run_on(subscriber, *steps):
    """Runs steps on the messages until all are acknowledged, or the job fails."""
    with patched_direct_runner() as gate:
        pipeline = Pipeline("BundleBasedDirectRunner", options=PipelineOptions(["--streaming"]))
        messages = pipeline | ReadFromPubSub(subscription=SUBSCRIPTION, with_attributes=True) | FlatMap(_payloads)
        for index, step in enumerate(steps):
            messages |= f"{index}" >> step
        result = pipeline.run()
        failed = threading.Event()

        def wait():
            try:
                result.wait_until_finish()
            except Exception:  # noqa: BLE001 (whatever ends the job)
                failed.set()

        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: failed.is_set() or len(subscriber.acknowledged) == 3)
        gate.close()
        result.cancel()
    return failed.is_set()


def test_a_bundle_that_fails_is_not_acknowledged(subscriber):
    """The runner pulls once more after it has given a bundle up. Its messages come again to the next job."""

    def refuse(data):
        if data == b"3":
            raise ValueError("no")
        return data

    assert run_on(subscriber, Map(refuse), Map(refuse))
    assert subscriber.acknowledged == ["1", "2"]


class _LaterFn(DoFn):
    """Passes elements on when a timer of the clock fires."""

    spec = userstate.TimerSpec("later", TimeDomain.REAL_TIME)
    waiting = userstate.BagStateSpec("waiting", BytesCoder())

    def process(self, element, later=DoFn.TimerParam(spec), waiting=DoFn.StateParam(waiting)):  # noqa: B008
        waiting.add(element[1])
        later.set(1)  # long ago, so at once

    @userstate.on_timer(spec)
    def fire(self, waiting=DoFn.StateParam(waiting)):  # noqa: B008
        yield from waiting.read()
        waiting.clear()


_PASSED_ON, _ARRIVED = [], []  # the runner gets copies of what a test function has


def _pass_on(data):
    _PASSED_ON.append(data)
    return data


def _arrive(data):
    _ARRIVED.append(data)


def test_what_timers_started_is_processed_before_the_next_pull(subscriber):
    """The runner pulls when nothing is on its way, also of what a timer has passed on."""
    at_pulls = []
    pull = subscriber.pull
    subscriber.pull = lambda **request: at_pulls.append((len(_PASSED_ON), len(_ARRIVED))) or pull(**request)
    keyed = WithKeys("k").with_output_types(tuple[str, bytes])
    steps = keyed, ParDo(_LaterFn()), Map(_pass_on), Reshuffle(), Map(_arrive)
    assert not run_on(subscriber, *steps)
    assert sorted(_ARRIVED) == [b"1", b"2", b"3"]
    assert all(passed_on == arrived for passed_on, arrived in at_pulls)


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
