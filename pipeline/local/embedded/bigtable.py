"""Bigtable's API: of rows, ``google.bigtable.v2.Bigtable``, and of tables, ``google.bigtable.admin.v2``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from grpc import StatusCode

from pipeline.local.embedded.filters import compiled
from pipeline.local.embedded.services import RequestRefused, Service, invalid, method, not_built
from pipeline.local.embedded.tables import (
    ALL_KEYS,
    MAX_ROW_BYTES,
    KeyRange,
    MemoryTable,
    StoredCell,
    check_policy,
    size_of,
)

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


_Table = admin_types.Table.pb()


class BigtableTableAdmin(Service):
    """Creates, changes and drops tables.

    Args:
        tables: the tables by full name; changed in place.
        now_us: the clock of new tables.
    """

    name = "google.bigtable.admin.v2.BigtableTableAdmin"

    def __init__(self, tables: dict[str, MemoryTable], now_us: Callable[[], int]) -> None:
        self._tables = tables
        self._now_us = now_us

    @method(admin_types.CreateTableRequest, admin_types.Table)
    async def CreateTable(self, request: Any) -> Any:
        name = f"{request.parent}/tables/{request.table_id}"
        if name in self._tables:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, f'table "{name}" already exists')
        families = dict(sorted(request.table.column_families.items()))
        for family in families.values():
            _check_family(family)
        self._tables[name] = MemoryTable(families, self._now_us, protected=request.table.deletion_protection)
        return self._shown(name)

    @method(admin_types.ListTablesRequest, admin_types.ListTablesResponse)
    async def ListTables(self, request: Any) -> Any:
        names = [name for name in self._tables if name.startswith(f"{request.parent}/tables/")]
        return admin_types.ListTablesResponse.pb()(tables=[_Table(name=name) for name in sorted(names)])

    @method(admin_types.GetTableRequest, admin_types.Table)
    async def GetTable(self, request: Any) -> Any:
        return self._shown(request.name)

    @method(admin_types.UpdateTableRequest, Operation)
    async def UpdateTable(self, request: Any) -> Any:
        name, paths = request.table.name, list(request.update_mask.paths)
        if not paths:
            raise invalid("UpdateTableRequest.UpdateMask required for table update")
        if unknown := [path for path in paths if path != "deletion_protection"]:
            raise not_built(f"update of {unknown[0]}")
        self._table(name).protected = request.table.deletion_protection
        operation = Operation(name=f"operations/{name}/update", done=True)
        operation.response.Pack(self._shown(name))
        operation.metadata.Pack(admin_types.UpdateTableMetadata.pb()(name=name))
        return operation

    @method(admin_types.DeleteTableRequest, Empty)
    async def DeleteTable(self, request: Any) -> Any:
        self._check_unprotected(request.name)
        del self._tables[request.name]
        return Empty()

    @method(admin_types.ModifyColumnFamiliesRequest, admin_types.Table)
    async def ModifyColumnFamilies(self, request: Any) -> Any:
        table = self._table(request.name)
        for change in request.modifications:
            if change.WhichOneof("mod") == "create":
                if change.id in table.families:
                    raise RequestRefused(StatusCode.ALREADY_EXISTS, f'family "{change.id}" already exists')
                _check_family(change.create)
                table.families[change.id] = change.create
            elif change.drop:
                self._check_unprotected(request.name)
                if change.id not in table.families:
                    raise RequestRefused(StatusCode.UNKNOWN, f'can\'t delete unknown family "{change.id}"')
                table.drop_family(change.id)
            elif change.id not in table.families:
                raise RequestRefused(StatusCode.UNKNOWN, f'no such family "{change.id}"')
            elif change.HasField("update"):
                _check_family(change.update)
                table.families[change.id] = change.update
        return self._shown(request.name)

    @method(admin_types.DropRowRangeRequest, Empty)
    async def DropRowRange(self, request: Any) -> Any:
        table = self._table(request.name)
        if not request.delete_all_data_from_table and not request.HasField("row_key_prefix"):
            raise RequestRefused(StatusCode.UNKNOWN, "missing row key prefix")
        table.drop_rows(request.row_key_prefix)
        return Empty()

    @method(admin_types.GenerateConsistencyTokenRequest, admin_types.GenerateConsistencyTokenResponse)
    async def GenerateConsistencyToken(self, request: Any) -> Any:
        self._table(request.name)
        return admin_types.GenerateConsistencyTokenResponse.pb()(consistency_token=f"TokenFor-{request.name}")

    @method(admin_types.CheckConsistencyRequest, admin_types.CheckConsistencyResponse)
    async def CheckConsistency(self, request: Any) -> Any:
        self._table(request.name)
        if request.consistency_token != f"TokenFor-{request.name}":
            raise invalid(f'token "{request.consistency_token}" not valid')
        return admin_types.CheckConsistencyResponse.pb()(consistent=True)

    def _table(self, name: str) -> MemoryTable:
        if name not in self._tables:
            raise RequestRefused(StatusCode.NOT_FOUND, f'table "{name}" not found')
        return self._tables[name]

    def _check_unprotected(self, name: str) -> None:
        if self._table(name).protected:
            raise RequestRefused(StatusCode.FAILED_PRECONDITION, f'table "{name}" is protected from deletion')

    def _shown(self, name: str) -> Any:
        table = self._table(name)
        shown = _Table(name=name, granularity=admin_types.Table.TimestampGranularity.MILLIS)
        shown.deletion_protection = table.protected
        for name, family in table.families.items():
            shown.column_families[name].CopyFrom(family)
        return shown


def _check_family(family: Any) -> None:
    if family.HasField("value_type"):
        raise not_built("types of values")
    check_policy(family.gc_rule)
