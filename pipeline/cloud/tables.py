"""A table as its administrator sees it: families and their garbage collection.

Every function makes one call of Bigtable's admin API, on the emulator where BIGTABLE_EMULATOR_HOST says so,
and raises :class:`~pipeline.cloud.errors.ServerProblem` for what the server refuses or when it is out of reach;
:func:`create` writes the schema's row as well.
Those that set policies raise :class:`~pipeline.core.schema.policies.PolicyError` for one too long for Bigtable, before
the server is asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud import bigtable
from google.cloud.bigtable_admin_v2 import BaseBigtableTableAdminClient
from google.cloud.bigtable_admin_v2.types import CreateTableRequest, Table

from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.gc_rules import from_rule, to_rule
from pipeline.cloud.names import TableName
from pipeline.cloud.schema_store import write_schema
from pipeline.core.schema.policies import Never, Policy, collected_after, format_policy, same_policy
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema

# Seconds. A read is tried once, so this is how long an unreachable server is waited for.
READ_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 60.0

# A tablet for each value of {salt:2}. Bigtable's reference of CreateTableRequest.initial_splits names no limit; more
# would be no gain, as tablets move between servers whole and Bigtable splits and merges them by load later on.
MOST_SPLITS = 255


@dataclass(frozen=True)
class Difference:
    """One family that is not as wanted; ``str()`` says so in a line."""

    family: str
    actual: Policy | None  # None: the family is missing
    wanted: Policy | None  # None: nobody asked for the family, and it is left alone

    @property
    def left_alone(self) -> bool:
        return self.wanted is None

    @property
    def matches(self) -> bool:
        return self.actual is not None and self.wanted is not None and same_policy(self.actual, self.wanted)

    @property
    def collects_more(self) -> bool:
        """Whether the wanted policy lets cells go at an age at which they stay now."""
        if self.actual is None or self.wanted is None:
            return False
        before, after = collected_after(self.actual), collected_after(self.wanted)
        return after is not None and (before is None or after < before)

    def __str__(self) -> str:
        if self.wanted is None:
            return f"family {self.family} is not one of those asked for and is left alone"
        if self.actual is None:
            return f"family {self.family} is missing, wanted with policy {format_policy(self.wanted)}"
        return f"family {self.family}: policy is {format_policy(self.actual)}, wanted {format_policy(self.wanted)}"


def policies_of(schema: TableSchema) -> dict[str, Policy]:
    """Every family of a table with that schema, the table's own among them, and its policy."""
    return {family: schema.policies[family] for family in schema.families} | {SCHEMA_FAMILY: Never()}


def find(name: TableName) -> dict[str, Policy] | None:
    """The table's families and their policies; None where there is no such table.

    Needs no more than the permission ``bigtable.tables.get``.
    """
    with _admin(name, asked=f"table {name}") as admin:
        try:
            table = admin.get_table(
                {"name": str(name), "view": Table.View.SCHEMA_VIEW}, retry=None, timeout=READ_TIMEOUT_S
            )
        except NotFound:
            return None
    return {family: from_rule(table.column_families[family].gc_rule) for family in sorted(table.column_families)}


def describe(name: TableName) -> dict[str, Policy]:
    """The table's families and their policies. Raises ServerProblem where there is no such table."""
    families = find(name)
    if families is None:
        raise ServerProblem(f"table {name} does not exist")
    return families


def create(name: TableName, schema: TableSchema) -> bool:
    """Creates the table with its families and splits, and stores the schema in it.

    Returns:
        False where somebody else's table is there by now, or has been given another's schema: it is left alone.

    Raises:
        ServerProblem: also where the table was created and its schema could not be stored, which the message says.
    """
    if not create_bare(name, policies_of(schema), schema.key.split_keys(MOST_SPLITS)):
        return False
    try:
        return write_schema(name, schema)
    except ServerProblem as problem:
        raise ServerProblem(
            f"{problem}; the table was created, but does not hold its schema yet: the same once more with --apply "
            "stores it"
        ) from problem


def create_bare(name: TableName, policies: Mapping[str, Policy], split_keys: Iterable[bytes] = ()) -> bool:
    """Creates the table with these families and nothing in it; False where somebody else's is there by now."""
    request = CreateTableRequest(
        parent=name.parent,
        table_id=name.table,
        table={"column_families": {family: {"gc_rule": to_rule(policy)} for family, policy in policies.items()}},
        initial_splits=[{"key": key} for key in split_keys],
    )
    # What the server can miss when it creates a table is the instance.
    with _admin(name, asked=f"instance {name.parent}") as admin:
        try:
            admin.create_table(request, timeout=CHANGE_TIMEOUT_S)
        except AlreadyExists:
            return False
    return True


def differences(actual: Mapping[str, Policy], wanted: Mapping[str, Policy]) -> list[Difference]:
    """The families that are missing, that have another policy, or that nobody asked for, by name."""
    pairs = [Difference(family, actual.get(family), wanted.get(family)) for family in sorted({*actual, *wanted})]
    return [pair for pair in pairs if not pair.matches]


def apply(name: TableName, changes: Iterable[Difference]) -> None:
    """Adds the families that are missing and sets the policies that differ, in one request. Drops no family."""
    modifications = [
        {"id": change.family, "create" if change.actual is None else "update": {"gc_rule": to_rule(change.wanted)}}
        for change in changes
        if change.wanted is not None
    ]
    with _admin(name, asked=f"table {name}") as admin:
        admin.modify_column_families({"name": str(name), "modifications": modifications}, timeout=CHANGE_TIMEOUT_S)


def delete(name: TableName) -> None:
    """Deletes the table and all that is in it. Raises ServerProblem where there is no such table."""
    with _admin(name, asked=f"table {name}") as admin:
        admin.delete_table({"name": str(name)}, timeout=CHANGE_TIMEOUT_S)


@contextmanager
def _admin(name: TableName, *, asked: str) -> Iterator[BaseBigtableTableAdminClient]:
    """A client, closed after the block, whose errors are about what is ``asked`` for."""
    with explained(asked), bigtable.Client(project=name.project, admin=True).table_admin_client as client:
        yield client
