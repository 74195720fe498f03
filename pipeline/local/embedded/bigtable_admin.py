"""Bigtable's API of tables: ``google.bigtable.admin.v2.BigtableTableAdmin``."""

from collections.abc import Callable
from typing import Any

from google.cloud.bigtable_admin_v2 import types
from google.longrunning.operations_pb2 import Operation
from google.protobuf.empty_pb2 import Empty
from grpc import StatusCode

from pipeline.local.embedded.methods import Service, method
from pipeline.local.embedded.policies import check_policy
from pipeline.local.embedded.refusals import RequestRefused, invalid, not_built
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
        families = dict(sorted(request.table.column_families.items()))
        for family in families.values():
            _check_family(family)
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
        if not paths:
            raise invalid("UpdateTableRequest.UpdateMask required for table update")
        if unknown := [path for path in paths if path != "deletion_protection"]:
            raise not_built(f"update of {unknown[0]}")
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

    @method(types.DropRowRangeRequest, Empty)
    async def DropRowRange(self, request: Any) -> Any:
        table = self._table(request.name)
        if not request.delete_all_data_from_table and not request.HasField("row_key_prefix"):
            raise RequestRefused(StatusCode.UNKNOWN, "missing row key prefix")
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
        for name, family in table.families.items():
            shown.column_families[name].CopyFrom(family)
        return shown


def _check_family(family: Any) -> None:
    if family.HasField("value_type"):
        raise not_built("types of values")
    check_policy(family.gc_rule)
