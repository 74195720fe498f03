import sys

import pytest
from apache_beam.coders import BytesCoder, VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import statecache
from apache_beam.runners.worker.bundle_processor import OutputTimer, SynchronousBagRuntimeState
from apache_beam.runners.worker.data_plane import ClosableOutputStream
from apache_beam.runners.worker.sdk_worker import GlobalCachingStateHandler
from apache_beam.runners.worker.statecache import StateCache
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from pipeline.private_apis import worker_state
from pipeline.private_apis.worker_state import OF_WORKERS, check, set_clock_timer
from tests.engine.state_service import StateService, TokenRevoked

KEY = beam_fn_api_pb2.StateKey()
KEY.bag_user_state.user_state_id = "bag"
TOKEN = beam_fn_api_pb2.ProcessBundleRequest.CacheToken(user_state={}, token=b"1")


class Worker:
    """The SDK's own cache and bag, over a service whose pages contain one part."""

    def __init__(self, cache_bytes=1 << 20):
        self.service = StateService(page_bytes=1)
        self._handler = GlobalCachingStateHandler(StateCache(cache_bytes), self.service)
        self._bundles = 0

    def bundle(self, *steps):
        """Calls each step with the bag, and commits it."""
        self._bundles += 1
        with self._handler.process_instruction_id(str(self._bundles), [TOKEN]):
            bag = SynchronousBagRuntimeState(self._handler, KEY, BytesCoder())
            for step in steps:
                step(bag)
            bag.commit()


@pytest.fixture(autouse=True)
def _as_beam_has_it(monkeypatch):
    """Takes back what this process has changed."""
    monkeypatch.setattr(statecache, "get_deep_size", statecache.get_deep_size)
    for name, before in (
        ("_partially_cached_iterable", worker_state._first_page),
        ("process_instruction_id", worker_state._process_bundle),
    ):
        monkeypatch.setattr(GlobalCachingStateHandler, name, before)


@pytest.fixture
def _prepared(_as_beam_has_it):
    worker_state.prepare()


def fill(worker):
    for value in (b"a", b"b", b"c"):
        worker.bundle(lambda bag, value=value: bag.add(value))


def test_beam_itself_keeps_a_revoked_token():
    """Without our change, what was read in one bundle can never be read again: the reason for it is still there."""
    worker = Worker()
    fill(worker)
    worker.bundle(lambda bag: list(bag.read()))
    for _ in range(3):
        with pytest.raises(TokenRevoked):
            worker.bundle(lambda bag: list(bag.read()))


@pytest.mark.usefixtures("_prepared")
@pytest.mark.parametrize("cache_bytes", [0, 100, 1 << 20])
def test_a_bag_of_several_pages_is_read_again(cache_bytes):
    """Later bundles read all of a bag, with what was added since, with and without a cache, and if it is too small."""
    worker, read = Worker(cache_bytes), []
    fill(worker)
    worker.bundle(lambda bag: read.append(list(bag.read())), lambda bag: bag.add(b"d"))
    worker.bundle(lambda bag: read.append(list(bag.read())))
    worker.bundle(lambda bag: bag.clear(), lambda bag: bag.add(b"e"))
    worker.bundle(lambda bag: read.append(list(bag.read())))
    assert read == [[b"a", b"b", b"c"], [b"a", b"b", b"c", b"d"], [b"e"]]


@pytest.mark.usefixtures("_prepared")
def test_the_cache_still_saves_requests():
    """A bag that was read is not asked for again."""
    worker = Worker()
    fill(worker)
    worker.bundle(lambda bag: list(bag.read()))
    asked = worker.service.counts["get"]
    worker.bundle(lambda bag: list(bag.read()))
    assert worker.service.counts["get"] == asked == 3


@pytest.mark.usefixtures("_prepared")
def test_a_bundle_that_raises_leaves_nothing_in_the_cache():
    """Changes that the runner drops, since a later step of the bundle raised, are not read from the cache."""
    worker, read = Worker(), []
    fill(worker)
    worker.service.commit()

    def fail(bag):
        bag.commit()
        raise ConnectionError

    with pytest.raises(ConnectionError):
        worker.bundle(lambda bag: list(bag.read()), lambda bag: bag.clear(), lambda bag: bag.add(b"d"), fail)
    worker.service.restore()
    worker.bundle(lambda bag: read.extend(bag.read()))
    assert read == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("_prepared")
def test_no_module_is_looked_at(monkeypatch):
    """Beam's cache weighs what it keeps, with our function, and without walking through the loaded modules."""
    looked_at = []

    class Module:
        @property
        def __dict__(self):
            looked_at.append(self)
            return {}

    monkeypatch.setitem(sys.modules, "odd", Module())
    cache = StateCache(1 << 20)
    cache.put(("key", b"token"), [b"x" * 10_000])
    assert cache._current_weight > 10_000
    assert cache.peek(("key", b"token")) == [b"x" * 10_000]
    assert not looked_at


@pytest.mark.parametrize(("in_worker", "hold"), [(True, 90), (False, 5)])
def test_a_timer_of_the_clock_holds_the_time_at_which_it_fires(monkeypatch, in_worker, hold):
    """In a worker, the hold is the firing time; for a runner in this process, the timestamp of the element."""
    monkeypatch.delenv(OF_WORKERS, raising=False)
    if in_worker:
        monkeypatch.setenv(OF_WORKERS, "url: 'localhost:1'")
    coder, stream = _TimerCoder(VarIntCoder(), GlobalWindowCoder()).get_impl(), ClosableOutputStream()
    timer = OutputTimer(
        1, GlobalWindow(), Timestamp(5), PANE_INFO_UNKNOWN, TimeDomain.REAL_TIME, "clock", coder, stream
    )
    set_clock_timer(timer, Timestamp(90))
    (sent,) = coder.decode_all(stream.get())
    assert (sent.fire_timestamp, sent.hold_timestamp) == (Timestamp(90), Timestamp(hold))


def test_a_release_that_holds_the_watermark(monkeypatch):
    """A worker whose release of Beam ignores what we set fails at once, instead of delaying every pane."""
    check()
    set_timer = OutputTimer.set

    def set_with_hold(timer, at):
        timer._input_timestamp = Timestamp(0)
        set_timer(timer, at)

    monkeypatch.setattr(OutputTimer, "set", set_with_hold)
    monkeypatch.delenv(OF_WORKERS, raising=False)
    check()  # no worker
    monkeypatch.setenv(OF_WORKERS, "url: 'localhost:1'")
    with pytest.raises(RuntimeError, match=r"requirements\.txt"):
        check()
