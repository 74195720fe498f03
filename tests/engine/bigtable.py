"""Bigtable as both writers reach it: what becomes of the rows that they send."""

from collections import Counter
from contextlib import ExitStack, contextmanager
from threading import Lock
from unittest import mock

from google.cloud.bigtable.data._sync_autogen.mutations_batcher import MutationsBatcher
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse

from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.cloud.writing import bulk_writer

_Request = MutateRowsRequest.pb()
_ECHOES = 0.2
_REFUSED = 3  # INVALID_ARGUMENT


class Bigtable:
    """Tables by name.

    Attributes:
        tables: the tables.
        refuses: returns whether a table refuses a row with a key.
        patience: how often it refuses such a row; None for good.
        sent: the mutations of rows that the current bundle has sent: table, key and mutations.
        requests: the number of requests that the current bundle has sent.
        adrift: what a worker that lost its lease has sent, and the table has not got yet.
    """

    def __init__(self, tables):
        self.tables, self.adrift = tables, []
        self.refuses, self.patience, self._refused = lambda name, key: False, None, Counter()
        self._lock = Lock()
        self.begin()

    def begin(self):
        """Begins a bundle."""
        self.sent, self.requests, self._before = [], 0, {}

    def _refuses(self, name, key):
        if not self.refuses(name, key) or self._refused[name, key] == self.patience:
            return False
        self._refused[name, key] += 1
        return True

    def recall(self):
        """Takes back what the bundle has written; returns what it has sent."""
        for (name, key), cells in self._before.items():
            self.tables[name].put_back(key, cells)
        sent = self.sent
        self.begin()
        return sent

    def tear(self, random, *, later):
        """Lets each row that the bundle has written be in the table, or never get there, or later if that may be."""
        for each in self.recall():
            match random.randrange(2 + later):
                case 0:
                    self.apply(each)
                case 2:
                    self.adrift.append(each)

    def echo(self, random):
        """Lets some requests of the bundle, whose answers were late, reach the table once more later."""
        self.adrift += [each for each in self.sent if random.random() < _ECHOES]

    def land(self, random, share=1.0):
        """Lets a share of the rows reach the table that are on their way, in any order."""
        landing = [each for each in self.adrift if random.random() < share]
        self.adrift = [each for each in self.adrift if all(each is not one for one in landing)]
        random.shuffle(landing)
        for each in landing:
            self.apply(each)

    def apply(self, sent):
        """Applies what has been sent to a row."""
        name, key, mutations = sent
        self.tables[name].apply(key, mutations)

    @contextmanager
    def served(self):
        """Connects readers and writers in this process to these tables."""
        by_path = {str(name): name for name in self.tables}

        def mutate(request):
            name, response = by_path[request.table_name], MutateRowsResponse.pb()()
            with self._lock:
                self.requests += 1
                for index, entry in enumerate(request.entries):
                    answer = response.entries.add(index=index)
                    if self._refuses(name, entry.row_key):
                        answer.status.code, answer.status.message = _REFUSED, "refused for good"
                        continue
                    if (name, entry.row_key) not in self._before:
                        self._before[name, entry.row_key] = self.tables[name].row_of(entry.row_key)
                    self.sent.append((name, entry.row_key, list(entry.mutations)))
                    self.tables[name].apply(entry.row_key, entry.mutations)
            return response

        def of_connector(_, request, **__):
            yield MutateRowsResponse.wrap(mutate(MutateRowsRequest.pb(request)))

        def of_bulk(*_):
            return lambda request, timeout: [mutate(_Request.FromString(request))]

        def opened(name, *_, **__):
            return self.tables[name].opened()

        with ExitStack() as stack:
            for target, name, value in (
                (BigtableClient, "mutate_rows", of_connector),
                (
                    MutationsBatcher,
                    "_timer_routine",
                    lambda *_: None,
                ),  # it would write rows of failed bundles
                (bulk_writer, "call_for", of_bulk),
                (RowReader, "open", opened),
                (TableGuard, "check", lambda _: None),
                (TableGuard, "check_now", lambda _: None),
            ):
                stack.enter_context(mock.patch.object(target, name, value))
            stack.enter_context(mock.patch.dict("os.environ", {"BIGTABLE_EMULATOR_HOST": "localhost:1"}))
            yield self
