"""Makes Beam's cache of state cheap.

Beam weighs what it caches with ``objsize``, which by default first collects the globals of all loaded modules, to leave
them out: some two milliseconds for each value that is read or written. Our state is bytes, which refer to no module.

Relies on, in ``apache-beam``: ``StateCache`` and ``CachedValue`` in apache_beam/runners/worker/statecache.py find
``get_deep_size`` as an attribute of that module. In ``objsize``: ``get_deep_size`` takes ``exclude_modules_globals``.
"""

from functools import partial

from apache_beam.runners.worker import statecache
from objsize import get_deep_size  # type: ignore[import-untyped]


def make_cheap() -> None:
    """Changes how this process weighs cached state, for good. Call it in the ``setup`` of a DoFn with state."""
    statecache.get_deep_size = _weigh


_weigh = partial(
    get_deep_size,
    get_size_func=statecache._size_func,
    get_referents_func=statecache._get_referents_func,
    filter_func=statecache._filter_func,
    exclude_modules_globals=False,
)
