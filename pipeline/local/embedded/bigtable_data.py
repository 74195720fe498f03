"""Bigtable's data API: ``google.bigtable.v2.Bigtable``."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from google.cloud.bigtable_v2 import types
from grpc import StatusCode

from pipeline.local.embedded.filters import compiled
from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.refusals import RequestRefused, invalid, not_built
from pipeline.local.embedded.tables import ALL_KEYS, MAX_ROW_BYTES, KeyRange, MemoryTable, StoredCell, size_of

MAX_MUTATIONS = 100_000  # in a request
_RESPONSE_CELLS, _RESPONSE_BYTES = 1000, 1 << 20  # a response is sent once it has so many
_SAMPLE_EVERY = 100  # rows

_ReadRowsResponse = types.ReadRowsResponse.pb()
_MutateRowsResponse = types.MutateRowsResponse.pb()


class BigtableData(Service):
    """Reads and writes rows.

    Args:
        tables: the tables by full name.
    """

    name = "google.bigtable.v2.Bigtable"

    def __init__(self, tables: dict[str, MemoryTable]) -> None:
        self._tables = tables

    @method(types.PingAndWarmRequest, types.PingAndWarmResponse)
    async def PingAndWarm(self, _: Any) -> Any:
        return types.PingAndWarmResponse.pb()()

    @method(types.MutateRowRequest, types.MutateRowResponse)
    async def MutateRow(self, request: Any) -> Any:
        table = self._table(request)
        _check_count(len(request.mutations))
        table.mutate(request.row_key, request.mutations)
        return types.MutateRowResponse.pb()()

    @method(types.MutateRowsRequest, types.MutateRowsResponse, streams=True)
    async def MutateRows(self, request: Any) -> AsyncIterator[Any]:
        _check_count(sum(len(entry.mutations) for entry in request.entries))
        table = self._table(request)
        response = _MutateRowsResponse()
        for index, entry in enumerate(request.entries):
            status = response.entries.add(index=index).status
            status.code = 0
            try:
                table.mutate(entry.row_key, entry.mutations)
            except RequestRefused as refused:
                status.code, status.message = StatusCode.INTERNAL.value[0], str(refused)
        yield response

    @method(types.CheckAndMutateRowRequest, types.CheckAndMutateRowResponse)
    async def CheckAndMutateRow(self, request: Any) -> Any:
        table = self._table(request)
        cells = compiled(request.predicate_filter)(request.row_key, table.cells(request.row_key))
        table.mutate(request.row_key, request.true_mutations if cells else request.false_mutations)
        return types.CheckAndMutateRowResponse.pb()(predicate_matched=bool(cells))

    @method(types.ReadModifyWriteRowRequest, types.ReadModifyWriteRowResponse)
    async def ReadModifyWriteRow(self, request: Any) -> Any:
        written = self._table(request).read_modify_write(request.row_key, request.rules)
        response = types.ReadModifyWriteRowResponse.pb()()
        response.row.key = request.row_key
        for cell in written:
            families = response.row.families
            if not families or families[-1].name != cell.family:
                families.add(name=cell.family)
            columns = families[-1].columns
            columns.add(qualifier=cell.qualifier).cells.add(timestamp_micros=cell.time_us, value=cell.value)
        return response

    @method(types.SampleRowKeysRequest, types.SampleRowKeysResponse, streams=True)
    async def SampleRowKeys(self, request: Any) -> AsyncIterator[Any]:
        table, rows, offset = self._table(request), 0, 0
        for batch in table.keys([ALL_KEYS]):
            for key in batch:
                rows += 1
                if rows % _SAMPLE_EVERY == 0:
                    yield types.SampleRowKeysResponse.pb()(row_key=key, offset_bytes=offset)
                offset += table.size(key)
        yield types.SampleRowKeysResponse.pb()(offset_bytes=offset)

    @method(types.ReadRowsRequest, types.ReadRowsResponse, streams=True)
    async def ReadRows(self, request: Any) -> AsyncIterator[Any]:
        size, response = 0, _ReadRowsResponse()
        async for key, cells in self._rows(request):
            size += _add_row(response, key, cells)
            if len(response.chunks) >= _RESPONSE_CELLS or size >= _RESPONSE_BYTES:
                yield response
                size, response = 0, _ReadRowsResponse()
        if response.chunks:
            yield response

    async def _rows(self, request: Any) -> AsyncIterator[tuple[bytes, list[StoredCell]]]:
        """Yields the keys and filtered cells of the rows that a request asks for, in its order."""
        table, passing, rows = self._table(request), compiled(request.filter), 0
        for batch in table.keys(_ranges(request.rows), reverse=request.reversed) if request.rows_limit >= 0 else ():
            await asyncio.sleep(0)  # others come in between
            for key in batch:
                if cells := passing(key, table.cells(key)):
                    yield key, cells
                    rows += 1
                    if rows == request.rows_limit:
                        return

    def _table(self, request: Any) -> MemoryTable:
        for field in ("authorized_view_name", "materialized_view_name"):
            if getattr(request, field, ""):
                raise not_built(field.removesuffix("_name").replace("_", " "))
        if request.table_name not in self._tables:
            raise RequestRefused(StatusCode.NOT_FOUND, f'table "{request.table_name}" not found')
        return self._tables[request.table_name]


def _check_count(mutations: int) -> None:
    if not mutations:
        raise invalid("No mutations provided")
    if mutations > MAX_MUTATIONS:
        raise invalid(f"A request must not contain more than {MAX_MUTATIONS} mutations")


def _ranges(wanted: Any) -> list[KeyRange]:
    """Returns the ranges of a ``RowSet``: the whole table if it is empty."""
    keys: list[KeyRange] = [(key, key + b"\0") for key in wanted.row_keys]
    ranges = keys + [_range(index, each) for index, each in enumerate(wanted.row_ranges)]
    return ranges or [ALL_KEYS]


def _range(index: int, row_range: Any) -> KeyRange:
    start, end = row_range.WhichOneof("start_key"), row_range.WhichOneof("end_key")
    first, last = getattr(row_range, start or "", b""), getattr(row_range, end or "", b"")
    if first > last and start and end:
        raise invalid(f"Error in element #{index}: {start} must be less than {end}")
    # The next key is the same with a zero byte.
    return first + b"\0" * (start == "start_key_open"), (last + b"\0" * (end == "end_key_closed")) or None


def _add_row(response: Any, key: bytes, cells: list[StoredCell]) -> int:
    """Adds a row's chunks: a key in the first one, a family and a qualifier where they change. Returns its bytes."""
    size = size_of(cells)
    if size > MAX_ROW_BYTES:
        raise invalid(f"A row must not exceed {MAX_ROW_BYTES} bytes")
    family = qualifier = None
    for cell in cells:
        chunk = response.chunks.add(timestamp_micros=cell.time_us, value=cell.value)
        if family is None:
            chunk.row_key = key
        if cell.family != family:
            chunk.family_name.value = family = cell.family
            qualifier = None
        if cell.qualifier != qualifier:
            chunk.qualifier.value = qualifier = cell.qualifier
        if cell.label:
            chunk.labels.append(cell.label)
    chunk.commit_row = True
    return size
