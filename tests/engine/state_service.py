"""The service's state: what the worker reads, appends and clears, which counts until its bundle is committed."""

from collections import Counter
from contextlib import contextmanager

from apache_beam.runners.worker.sdk_worker import StateHandler, _Future


class TokenRevoked(Exception):
    """A token of another work item was used to read on."""


class StateService(StateHandler):
    """State by key, as the parts that were appended.

    A read returns a page, and a token with which the same work item can read on. No other work item can.

    Args:
        page_bytes: a page has no further part once it has so many bytes.

    Attributes:
        counts: the number of requests by kind, and the bytes ``read`` and ``written``.
        written: the parts that the current bundle has appended.
    """

    def __init__(self, page_bytes=1 << 20):
        self._page_bytes = page_bytes
        self._stored, self._current = {}, {}
        self.counts, self.written = Counter(), []
        self._tokens = set()  # of the current work item

    @contextmanager
    def process_instruction_id(self, bundle_id):
        self._tokens.clear()
        yield

    def get_raw(self, state_key, continuation_token=None):
        key = state_key.SerializeToString()
        if continuation_token and (key, continuation_token) not in self._tokens:
            raise TokenRevoked(state_key.bag_user_state.user_state_id)
        parts, page, end = self._current.get(key, ()), b"", int(continuation_token or 0)
        while end < len(parts) and (not page or len(page) < self._page_bytes):
            page += parts[end]
            end += 1
        self.counts["get"] += 1
        self.counts["read"] += len(page)
        if end == len(parts):
            return page, None
        self._tokens.add((key, b"%d" % end))
        return page, b"%d" % end

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
