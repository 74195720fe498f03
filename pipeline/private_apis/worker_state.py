"""Makes workers cache only state that can be read again, cheaply, and set timers that hold no watermark back.

A worker caches state across bundles, under a token that the runner keeps as long as the state is what the worker wrote.

- Of a bag of several pages, Beam caches the first page, and a token with which the work item that read it can read on.
  Any later work item reads the bag with that token, and raises, at each try, for ever (beam#39383). What is added to
  such a bag is missing from the cache, too. So here a bag is read to its end, and cached as a whole.
- At the end of a bundle, a step's changes go to the cache before the next step finishes. If that one raises, because
  Bigtable is away for example, the runner drops the changes, and the cache keeps them. So a bundle that raises empties
  the cache here.
- Beam weighs what it caches with ``objsize``, which by default first collects the globals of all loaded modules, to
  leave them out: some two milliseconds for each value. Our state is bytes, which refer to no module. A bag is weighed
  again with each value that is added, so a list of bytes is summed up here, several times as fast.

With a timer of the clock, Beam sends the timestamp of the element or timer that set it, and Dataflow holds the step's
output watermark there until the timer fires: five minutes for an early pane, twenty for windows that rest. What the
timer puts out needs no such hold, since its timestamp is the time at which the timer fires. So we send that time, as
Beam does for timers of the watermark. Java has a method for it, and Python has none (beam#20705).

Relies on, in ``apache-beam``:

- ``GlobalCachingStateHandler`` in apache_beam/runners/worker/sdk_worker.py. Its ``_partially_cached_iterable`` returns
  what is cached of a value; ``_lazy_iterator`` reads all pages. Its ``process_instruction_id`` is the context of a
  bundle, and ``_state_cache`` a ``StateCache``.
- ``StateCache`` in apache_beam/runners/worker/statecache.py finds ``get_deep_size`` as an attribute of that module. Its
  ``invalidate_all`` may be called while other bundles read.
- ``OutputTimer`` in apache_beam/runners/worker/bundle_processor.py sends its ``_input_timestamp`` as the hold of a
  timer of the clock, which :func:`check` tries. A DoFn gets a new one for each call. The DirectRunner's timers are of
  another class, and hold nothing. Its ``set`` encodes the timer with ``_TimerCoder`` in apache_beam/coders/coders.py.
- apache_beam/runners/worker/sdk_worker_main.py, the main program of workers, takes the address of its service from the
  environment. Without it, the runner may be the FnApiRunner in this process, which takes the hold for the firing time.

In ``objsize``: ``get_deep_size`` takes ``exclude_modules_globals``.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from sys import getsizeof
from typing import Any

from apache_beam.coders import VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import statecache
from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.runners.worker.data_plane import ClosableOutputStream
from apache_beam.runners.worker.sdk_worker import GlobalCachingStateHandler
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import RuntimeTimer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN
from objsize import get_deep_size  # type: ignore[import-untyped]

from pipeline.private_apis.replace import replace


def prepare() -> None:
    """Changes how this process caches state, for good. Call it in the ``setup`` of a DoFn with state."""
    replace(statecache, "get_deep_size", _weigh)
    replace(GlobalCachingStateHandler, "_partially_cached_iterable", _whole)
    replace(GlobalCachingStateHandler, "process_instruction_id", _forgetting)


_weigh_any = partial(
    get_deep_size,
    get_size_func=statecache._size_func,
    get_referents_func=statecache._get_referents_func,
    filter_func=statecache._filter_func,
    exclude_modules_globals=False,
)
_first_page = GlobalCachingStateHandler._partially_cached_iterable
_process_bundle = GlobalCachingStateHandler.process_instruction_id


def _weigh(value: Any) -> int:
    if type(value) is list and all(type(each) is bytes for each in value):
        return getsizeof(value) + sum(map(getsizeof, value))
    return _weigh_any(value)


def _whole(handler: GlobalCachingStateHandler, state_key: beam_fn_api_pb2.StateKey, coder: Any) -> Iterable[Any]:
    if state_key.HasField("bag_user_state"):
        return list(handler._lazy_iterator(state_key, coder))
    return _first_page(handler, state_key, coder)  # a side input


@contextmanager
def _forgetting(handler: GlobalCachingStateHandler, *arguments: Any) -> Iterator[None]:
    try:
        with _process_bundle(handler, *arguments):
            yield
    except BaseException:
        handler._state_cache.invalidate_all()
        raise


OF_WORKERS = "CONTROL_API_SERVICE_DESCRIPTOR"
"""A variable of the environment that every worker has."""


def set_clock_timer(timer: RuntimeTimer, at: Timestamp) -> None:
    """Sets a timer of the clock. Until it fires, the output watermark may get as far as the time at which it fires."""
    if isinstance(timer, OutputTimer) and OF_WORKERS in os.environ:
        replace(timer, "_input_timestamp", at)
    timer.set(at)


def watermark_is_clock(timer: RuntimeTimer) -> bool:
    """Returns whether a timer is one of the DirectRunner, whose watermark is the clock, whatever waits in Pub/Sub."""
    return not isinstance(timer, OutputTimer)


def clock_is_set_forward(timer: RuntimeTimer, at: Timestamp, now_us: int, every_us: int) -> bool:
    """Returns whether a timer fires early because a stop has set the DirectRunner's clock forward.

    A timer that sets itself again would fire again at once, for ever.

    Args:
        timer: the timer.
        at: the time for which it was set.
        now_us: the current time.
        every_us: the time after which the timer sets itself.
    """
    return not isinstance(timer, OutputTimer) and at.micros > now_us + every_us // 2


def check() -> None:
    """Sets a timer of the clock, and looks at its hold. Call it in the ``setup`` of a DoFn with timers.

    Raises:
        RuntimeError: this is a worker, and the installed release of Beam would hold the watermark all the same.
    """
    coder, stream = _TimerCoder(VarIntCoder(), GlobalWindowCoder()).get_impl(), ClosableOutputStream()
    arguments = 1, GlobalWindow(), Timestamp(0), PANE_INFO_UNKNOWN, TimeDomain.REAL_TIME, "clock", coder, stream
    set_clock_timer(OutputTimer(*arguments), Timestamp(1))
    (sent,) = coder.decode_all(stream.get())
    if OF_WORKERS in os.environ and sent.hold_timestamp != Timestamp(1):
        raise RuntimeError(
            "the installed release of apache-beam holds the watermark until a timer of the clock fires, which delays "
            "panes by an hour: install the release that requirements.txt pins, on workers too"
        )
