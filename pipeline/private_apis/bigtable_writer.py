"""Beam's Bigtable connector for elements of several encoded rows, with errors that name the cause, and its metric.

Relies on, in ``apache-beam``, file apache_beam/io/gcp/bigtableio.py:

- ``WriteToBigTable.__init__`` keeps its arguments in ``_project_id``, ``_instance_id``, ``_table_id`` and
  ``_flush_count``; ``expand`` is a ParDo of ``_BigTableWriteFn`` with them.
- ``_BigTableWriteFn`` keeps them in ``beam_options`` and pickles nothing else. ``start_bundle`` creates ``table``, with
  a client of its own, if it is None, and ``batcher``, a ``MutationsBatcher``, which passes the statuses of a request to
  ``write_mutate_metrics``. That counts them one by one. ``process`` counts the row in ``written`` and passes it to the
  batcher. ``finish_bundle`` closes the batcher. ``start_bundle`` may run again afterwards.
- ``start_service_call_metrics``, in the same class, chooses the labels of a ``ServiceCallMetric``, of
  apache_beam/internal/metrics/metric.py. Its ``call`` increments a process-wide counter of this URN, with these labels
  and ``STATUS_LABEL``, by one; :class:`ServiceCalls` counts many. ``bigtable_error_code_to_grpc_status_string``, in
  the same file, returns the text of a status.

And in ``google-cloud-bigtable``:

- ``MutationsBatcher.mutate`` in google/cloud/bigtable/batcher.py converts a ``DirectRow`` to a ``RowMutationEntry`` and
  passes it to ``_batcher.append``. ``close``, in the same class, waits for what is on its way, and raises
  ``MutationsBatchError`` with the causes in ``exc``. Workers' logs do not contain them.
- ``MutationsBatcher`` in google/cloud/bigtable/data/_sync_autogen/mutations_batcher.py keeps what is not on its way yet
  in ``_staged_entries``. A timer sends it every few seconds until ``close``.
- ``MutationsBatcher`` and ``_FlowControl`` in google/cloud/bigtable/data/_sync_autogen/mutations_batcher.py use an
  entry's ``size()`` and the length of its ``mutations``.
- ``_MutateRowsOperation`` in google/cloud/bigtable/data/_sync_autogen/_mutate_rows.py uses its ``_to_pb()``, its
  ``is_idempotent()`` and the length of its ``mutations``. It sends requests with ``mutate_rows`` of the batcher's
  ``_target.client._gapic_client`` and the app profile ``_target.app_profile_id``, and only reads fields of the
  responses.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam.internal.metrics.metric import Metrics, ServiceCallMetric
from apache_beam.io.gcp import bigtableio
from apache_beam.io.gcp.resource_identifiers import BigtableTable
from apache_beam.metrics import monitoring_infos
from apache_beam.pvalue import PCollection
from google.cloud.bigtable.batcher import MutationsBatchError
from google.cloud.bigtable.data.mutations import RowMutationEntry
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.events.dead_letter import RefusedRow
from pipeline.core.rows.rows import ENTRY_OVERHEAD, EncodedRow, EncodedRows, Row, encoded, entry_of
from pipeline.private_apis.replace import replace

# Bigtable accepts at most 100,000 mutations in an entry; an aggregate row of 16,667 metrics has more.
_CELLS_PER_ENTRY = 50_000

_EntryMessage = MutateRowsRequest.Entry.pb()  # the plain protobuf class


class ServiceCalls:
    """Counts the entries of ``MutateRows`` requests to a table, as Beam's connector does."""

    def __init__(self, name: TableName) -> None:
        self._labels = {
            monitoring_infos.SERVICE_LABEL: "BigTable",
            monitoring_infos.METHOD_LABEL: "google.bigtable.v2.MutateRows",
            monitoring_infos.RESOURCE_LABEL: BigtableTable(name.project, name.instance, name.table),
            monitoring_infos.BIGTABLE_PROJECT_ID_LABEL: name.project,
            monitoring_infos.INSTANCE_ID_LABEL: name.instance,
            monitoring_infos.TABLE_ID_LABEL: name.table,
        }

    def count(self, status: int | None, entries: int) -> None:
        """Counts entries with this gRPC status; None for those without an answer."""
        text = ServiceCallMetric.bigtable_error_code_to_grpc_status_string(status)
        labels = self._labels | {monitoring_infos.STATUS_LABEL: text}
        Metrics.counter(monitoring_infos.API_REQUEST_COUNT_URN, labels, process_wide=True).inc(entries)


class WriteToBigTable(bigtableio.WriteToBigTable):
    """Writes ``Row`` elements, or ``EncodedRows``, with Beam's connector.

    Bundles fail as with the connector itself, but the error also states how many rows Bigtable refused, and why. With a
    guard, they fail too if the table is another one than at the launch.
    """

    def __init__(self, name: TableName, flush_count: int, guard: TableGuard | None = None) -> None:
        super().__init__(name.project, name.instance, name.table, flush_count=flush_count)
        self._app_profile = name.app_profile
        self._guard = guard

    def expand(self, rows: PCollection) -> PCollection:
        name = TableName(self._project_id, self._instance_id, self._table_id, self._app_profile)
        return rows | beam.ParDo(ConnectorWriteFn(name, self._flush_count, self._guard))


class ConnectorWriteFn(bigtableio._BigTableWriteFn):
    """Writes a bundle's rows. They are in the table when :meth:`finish_bundle` returns.

    Attributes:
        refused: the refused rows that the bundle did not fail for: none.
    """

    refused: tuple[RefusedRow, ...] = ()

    def __init__(self, name: TableName, flush_count: int, guard: TableGuard | None = None) -> None:
        super().__init__(name.project, name.instance, name.table, flush_count, bigtableio.MAX_ROW_BYTES)
        self.beam_options["app_profile"] = name.app_profile
        self.beam_options["guard"] = guard

    def default_label(self) -> str:
        return bigtableio._BigTableWriteFn.__name__  # in-place updates of jobs find the step by this label

    def start_bundle(self) -> None:
        self._abandon()
        if self.guard:
            self.guard.check()
        connects = self.table is None
        super().start_bundle()
        if connects:
            target = self.batcher._batcher._target
            replace(target, "app_profile_id", self.beam_options["app_profile"])  # the connector has no argument for it
            client = target.client._gapic_client
            client.mutate_rows = partial(_plain_responses, client.mutate_rows)
            self._service_calls = ServiceCalls(self._name)

    def teardown(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        """Drops the rows of a bundle that failed, which the batcher's timer would write at any later time."""
        if self.batcher is not None and not self.batcher._batcher.closed:
            self.batcher._batcher._staged_entries.clear()
            with suppress(MutationsBatchError):  # of what was on its way
                self.batcher.close()

    @property
    def guard(self) -> TableGuard | None:
        guard: TableGuard | None = self.beam_options["guard"]
        return guard

    @property
    def _name(self) -> TableName:
        return TableName(*(self.beam_options[key] for key in ("project_id", "instance_id", "table_id", "app_profile")))

    def write_mutate_metrics(self, status_list: Iterable[Any]) -> None:
        """Counts as the connector does, but equal statuses at once."""
        for code, entries in Counter(status.code if status else None for status in status_list).items():
            self._service_calls.count(code, entries)

    def process(self, element: Row | EncodedRows) -> tuple[()]:
        rows = list(_parts(element)) if isinstance(element, Row) else element
        self.written.inc(len(rows))
        for row in rows:
            self.batcher._batcher.append(_EncodedEntry(row))
        return ()

    def finish_bundle(self) -> tuple[()]:
        try:
            super().finish_bundle()
        except MutationsBatchError as error:
            if self.guard:
                self.guard.check_now()
            causes = Counter(" ".join(f"{type(cause).__name__}: {cause}".split())[:300] for cause in error.exc)
            (cause, _), *others = causes.most_common()
            more = f", and {len(others)} other causes" if others else ""
            raise ServerError(
                f"table {self._name}: {causes.total()} rows could not be written: {cause}{more}"
            ) from error
        if self.guard:
            self.guard.check()
        return ()


def _plain_responses(mutate_rows: Callable[..., Iterable[MutateRowsResponse]], **request: Any) -> Iterator[Any]:
    """Returns the responses as plain protobuf messages: reading their wrappers takes a third of the whole time."""
    return map(MutateRowsResponse.pb, mutate_rows(**request))


def _parts(row: Row) -> Iterator[EncodedRow]:
    """Yields the row's cells in one or more encoded rows. They share no cell, so their order does not matter."""
    for start in range(0, len(row.cells), _CELLS_PER_ENTRY):
        yield encoded(Row(row.key, row.cells[start : start + _CELLS_PER_ENTRY]))


class _EncodedEntry(RowMutationEntry):
    """The entry of an encoded row. Creating it takes a fifth of the time that the batcher takes for a ``DirectRow``.

    The batcher only counts the mutations. It limits requests by :meth:`size`, which is the same for all entries that
    it creates from a ``DirectRow``, whatever they contain.
    """

    def __init__(self, row: EncodedRow) -> None:
        self.row_key = row.key
        self.mutations = range(row.cells)
        self._encoded = row.mutations

    def size(self) -> int:
        return len(self.row_key) + len(self._encoded) + ENTRY_OVERHEAD

    def is_idempotent(self) -> bool:
        return True  # each cell has a timestamp of its own

    def _to_pb(self) -> Any:  # a plain message, which the request's wrapper takes as well
        return _EntryMessage.FromString(entry_of(self.row_key, [self._encoded]))
