"""Tests of the rules that a table stores: their number, and others who store rules at the same time."""

import pytest
from google.api_core.exceptions import FailedPrecondition
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import CheckAndMutateRowResponse

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import alert_store
from pipeline.cloud.tables.alert_store import RULES_KEY, read_rules, read_rules_text, write_rules_text
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from tests.support.tables import created, write

_SCHEMA = TableSchema.for_new_table()


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table without rules."""
    return created(_SCHEMA)


def _toml(limit: int) -> str:
    return f'[[rule]]\nname = "warm"\nmetric = "t"\nabove = {limit}\n'


def _stored(name: TableName) -> RuleSet:
    with RowReader.open(name) as reader:
        return read_rules(reader, _SCHEMA)


def test_the_number_of_rules_grows(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each apply has a greater number, also if clocks differ, and if it removes all rules."""
    assert _stored(name).number == 0
    write(name, [Row(RULES_KEY, [Cell(SCHEMA_FAMILY, b"rules.toml", 0, _toml(1).encode())])])
    assert (_stored(name).number, len(_stored(name).rules)) == (0, 1)
    numbers = []
    for clock_s, text in ((5, _toml(2)), (5, _toml(3)), (4, ""), (6, _toml(2))):
        monkeypatch.setattr(alert_store.time, "time_ns", lambda clock_s=clock_s: clock_s * 10**9)
        write_rules_text(name, text)
        numbers.append(_stored(name).number)
        with RowReader.open(name) as reader:
            assert read_rules_text(reader) == text
    assert numbers == [5_000_000, 5_001_000, 5_002_000, 6_000_000]


@pytest.mark.parametrize("is_first", [True, False])
def test_others_store_rules_at_the_same_time(name: TableName, monkeypatch: pytest.MonkeyPatch, is_first: bool) -> None:
    """Rules that somebody stores a moment before get the lesser number."""
    if not is_first:
        write_rules_text(name, _toml(1))
    check, others = BigtableClient.check_and_mutate_row, [_toml(2), _toml(3)]

    def others_first(client: BigtableClient, request: dict[str, object]) -> object:
        if others:
            write_rules_text(name, others.pop())
            seen.append(_stored(name).number)
        return check(client, request=request)

    seen: list[int] = []
    monkeypatch.setattr(BigtableClient, "check_and_mutate_row", others_first)
    write_rules_text(name, _toml(4))
    assert [rule.summary for rule in _stored(name).rules] == ["t above 4"]
    assert _stored(name).number > max(seen)
    changed = CheckAndMutateRowResponse(predicate_matched=False)
    monkeypatch.setattr(BigtableClient, "check_and_mutate_row", lambda *_, **__: changed)
    with pytest.raises(ServerError, match="by others at the same time"):
        write_rules_text(name, _toml(4))


def test_an_instance_without_transactions_stores_rules(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an app profile of several clusters, which have no check-and-mutate, rules are read and then written."""

    def refuse(*_: object, **__: object) -> None:
        raise FailedPrecondition("Single-row transactions are not allowed by this app profile")

    monkeypatch.setattr(BigtableClient, "check_and_mutate_row", refuse)
    write_rules_text(name, _toml(1))
    first = _stored(name).number
    write_rules_text(name, _toml(2))
    assert _stored(name).number > first
