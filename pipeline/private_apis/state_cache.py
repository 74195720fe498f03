"""Makes Beam's cache of state hold only what can be read again, and makes the cache cheap.

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

Relies on, in ``apache-beam``:

- ``GlobalCachingStateHandler`` in apache_beam/runners/worker/sdk_worker.py. Its ``_partially_cached_iterable`` returns
  what is cached of a value; ``_lazy_iterator`` reads all pages. Its ``process_instruction_id`` is the context of a
  bundle, and ``_state_cache`` a ``StateCache``.
- ``StateCache`` in apache_beam/runners/worker/statecache.py finds ``get_deep_size`` as an attribute of that module. Its
  ``invalidate_all`` may be called while other bundles read.

In ``objsize``: ``get_deep_size`` takes ``exclude_modules_globals``.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from sys import getsizeof
from typing import Any

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import statecache
from apache_beam.runners.worker.sdk_worker import GlobalCachingStateHandler
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
