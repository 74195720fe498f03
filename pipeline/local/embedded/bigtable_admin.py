"""Bigtable's API of tables: ``google.bigtable.admin.v2.BigtableTableAdmin``."""

from collections.abc import Callable
from typing import Any

from google.cloud.bigtable_admin_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.refusals import RequestRefused, invalid
from pipeline.local.embedded.tables import MemoryTable

_Table = types.Table.pb()


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

    @method(types.CreateTableRequest, types.Table)
    async def CreateTable(self, request: Any) -> Any:
        name = f"{request.parent}/tables/{request.table_id}"
        if name in self._tables:
            raise RequestRefused(StatusCode.ALREADY_EXISTS, f'table "{name}" already exists')
        families = {family: of_family.gc_rule for family, of_family in sorted(request.table.column_families.items())}
        self._tables[name] = MemoryTable(families, self._now_us, protected=request.table.deletion_protection)
        return self._shown(name)

    @method(types.ListTablesRequest, types.ListTablesResponse)
    async def ListTables(self, request: Any) -> Any:
        names = [name for name in self._tables if name.startswith(f"{request.parent}/tables/")]
        return types.ListTablesResponse.pb()(tables=[_Table(name=name) for name in sorted(names)])

    @method(types.GetTableRequest, types.Table)
    async def GetTable(self, request: Any) -> Any:
        return self._shown(request.name)

    @method(types.UpdateTableRequest, Operation)
    async def UpdateTable(self, request: Any) -> Any:
        name, paths = request.table.name, list(request.update_mask.paths)
        if unknown := [path for path in paths if path != "deletion_protection"]:
            raise RequestRefused(StatusCode.UNIMPLEMENTED, f"the built-in emulator has no update of {unknown[0]}")
        self._table(name).protected = request.table.deletion_protection
        operation = Operation(name=f"operations/{name}/update", done=True)
        operation.response.Pack(self._shown(name))
        operation.metadata.Pack(types.UpdateTableMetadata.pb()(name=name))
        return operation

    @method(types.DeleteTableRequest, Empty)
    async def DeleteTable(self, request: Any) -> Any:
        self._check_unprotected(request.name)
        del self._tables[request.name]
        return Empty()

    @method(types.ModifyColumnFamiliesRequest, types.Table)
    async def ModifyColumnFamilies(self, request: Any) -> Any:
        table = self._table(request.name)
        for change in request.modifications:
            self._change_family(request.name, table, change)
        table.collect()
        return self._shown(request.name)

    def _change_family(self, name: str, table: MemoryTable, change: Any) -> None:
        kind = change.WhichOneof("mod")
        if kind == "create":
            if change.id in table.families:
                raise RequestRefused(StatusCode.ALREADY_EXISTS, f'family "{change.id}" already exists')
            table.families[change.id] = change.create.gc_rule
            return
        if kind == "drop":
            self._check_unprotected(name)
        if change.id not in table.families:
            what = "can't delete unknown family" if kind == "drop" else "no such family"
            raise RequestRefused(StatusCode.UNKNOWN, f'{what} "{change.id}"')
        if kind == "drop":
            table.drop_family(change.id)
        else:
            table.families[change.id] = change.update.gc_rule

    @method(types.DropRowRangeRequest, Empty)
    async def DropRowRange(self, request: Any) -> Any:
        table = self._table(request.name)
        table.drop_rows(request.row_key_prefix)
        return Empty()

    @method(types.GenerateConsistencyTokenRequest, types.GenerateConsistencyTokenResponse)
    async def GenerateConsistencyToken(self, request: Any) -> Any:
        self._table(request.name)
        return types.GenerateConsistencyTokenResponse.pb()(consistency_token=f"TokenFor-{request.name}")

    @method(types.CheckConsistencyRequest, types.CheckConsistencyResponse)
    async def CheckConsistency(self, request: Any) -> Any:
        self._table(request.name)
        if request.consistency_token != f"TokenFor-{request.name}":
            raise invalid(f'token "{request.consistency_token}" not valid')
        return types.CheckConsistencyResponse.pb()(consistent=True)

    def _table(self, name: str) -> MemoryTable:
        if name not in self._tables:
            raise RequestRefused(StatusCode.NOT_FOUND, f'table "{name}" not found')
        return self._tables[name]

    def _check_unprotected(self, name: str) -> None:
        if self._table(name).protected:
            raise RequestRefused(StatusCode.FAILED_PRECONDITION, f'table "{name}" is protected from deletion')

    def _shown(self, name: str) -> Any:
        table = self._table(name)
        shown = _Table(name=name, granularity=types.Table.TimestampGranularity.MILLIS)
        shown.deletion_protection = table.protected
        for family, rule in table.families.items():
            shown.column_families[family].gc_rule.CopyFrom(rule)
        return shown
