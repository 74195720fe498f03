"""The processes of workers: each has its own cache of state, and its own caches in modules."""

import sys
from contextlib import contextmanager
from functools import lru_cache

from apache_beam.runners.worker.statecache import StateCache


class Worker:
    """A process.

    Attributes:
        cache: what it has read of the state.
        processors: its DoFns, by stage.
    """

    def __init__(self, cache_mb):
        self._cache_mb, self.processors, self._kept = cache_mb, {}, {}
        self.begin()

    def begin(self):
        """Begins anew, with empty caches."""
        with self.running():
            for _, processor in self.processors.values():
                processor.shutdown()
        self.cache, self.processors, self._kept = StateCache(self._cache_mb << 20), {}, {}

    @contextmanager
    def running(self):
        """Gives modules what this process has in their caches, and takes it back."""
        others = self._swapped(self._kept)
        try:
            yield
        finally:
            self._kept = self._swapped(others)

    @staticmethod
    def _swapped(contents):
        """Replaces what modules have in their caches; returns what it was."""
        before = {}
        for name, cache in _caches(len(sys.modules)).items():
            if cache or contents.get(name):
                before[name] = cache.copy()
                cache.clear()
                add = cache.extend if isinstance(cache, list) else cache.update
                add(contents.get(name, ()))
        return before


@lru_cache(maxsize=1)
def _caches(_):
    """Returns what modules keep in variables that are no constants: dictionaries, sets and lists."""
    return {
        (module.__name__, name): value
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith("pipeline.") and not module.__name__.endswith("_pb2")
        for name, value in vars(module).items()
        if isinstance(value, dict | set | list) and name == name.lower() and not name.startswith("__")
    }
