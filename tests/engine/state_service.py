"""The service's state: what the worker reads, appends and clears, which counts until its bundle is committed."""

from collections import Counter
from contextlib import contextmanager

from apache_beam.runners.worker.sdk_worker import StateHandler, _Future


class StateService(StateHandler):
    """State by key, as the parts that were appended.

    Args:
        page_bytes: a read returns no further part once it has so many bytes, but says where to go on.

    Attributes:
        counts: the number of requests by kind, and the bytes ``read`` and ``written``.
        written: the parts that the current bundle has appended.
    """

    def __init__(self, page_bytes=1 << 20):
        self._page_bytes = page_bytes
        self._stored, self._current = {}, {}
        self.counts, self.written = Counter(), []

    @contextmanager
    def process_instruction_id(self, bundle_id):
        yield

    def get_raw(self, state_key, continuation_token=None):
        parts, page, end = self._current.get(state_key.SerializeToString(), ()), b"", int(continuation_token or 0)
        while end < len(parts) and (not page or len(page) < self._page_bytes):
            page += parts[end]
            end += 1
        self.counts["get"] += 1
        self.counts["read"] += len(page)
        return page, b"%d" % end if end < len(parts) else None

    def append_raw(self, state_key, data):
        key = state_key.SerializeToString()
        self._current[key] = (*self._current.get(key, ()), data)
        self.counts["append"] += 1
        self.counts["written"] += len(data)
        self.written.append(data)
        return _Future.done()

    def clear(self, state_key):
        self._current.pop(state_key.SerializeToString(), None)
        self.counts["clear"] += 1
        return _Future.done()

    def done(self):
        pass

    def commit(self):
        """Keeps what the bundle has changed."""
        self._stored, self.written = dict(self._current), []

    def restore(self):
        """Drops what the bundle has changed."""
        self._current, self.written = dict(self._stored), []

    def values(self):
        """Yields the key and the parts of each state that is not empty."""
        for key, parts in self._stored.items():
            yield key, b"".join(parts)
