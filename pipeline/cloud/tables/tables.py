"""Administers tables: their families and garbage-collection policies.

Every function calls Bigtable's admin API once, on the emulator if BIGTABLE_EMULATOR_HOST is set; :func:`create` also
writes the schema's row. A function raises :class:`~pipeline.cloud.connection.errors.ServerError` if the server
refuses or is out of reach. Before it calls the server, a function that sets policies raises
:class:`~pipeline.core.schema.gc_policies.PolicyError` for a policy that is too long for Bigtable.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from google.api_core.exceptions import AlreadyExists, NotFound
from google.cloud import bigtable
from google.cloud.bigtable_admin_v2 import BaseBigtableTableAdminClient
from google.cloud.bigtable_admin_v2.types import CreateTableRequest, GcRule, Table

from pipeline.cloud.connection.emulators import BIGTABLE, check_emulator
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.schema_store import write_schema
from pipeline.core.schema.gc_policies import (
    MAX_POLICY_BYTES,
    POLICY_TOO_LONG,
    Intersection,
    MaxAge,
    MaxVersions,
    Never,
    Policy,
    PolicyError,
    Union,
    collected_after,
    format_policy,
    same_policy,
    simplified,
)
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema

# A read is tried once, so it waits this long for an unreachable server.
READ_TIMEOUT_S = 10.0
CHANGE_TIMEOUT_S = 60.0

# A tablet for each value of {salt:2}. Bigtable's reference of CreateTableRequest.initial_splits names no limit, but
# more tablets gain nothing: they move between servers as a whole, and Bigtable later splits and merges them by load.
MAX_SPLITS = 255


@dataclass(frozen=True)
class Difference:
    """The difference between a family and the caller's wish; ``str()`` is one line about it."""

    family: str
    actual: Policy | None  # None: the family is missing
    wanted: Policy | None  # None: the family was not requested and is left alone

    @property
    def left_alone(self) -> bool:
        return self.wanted is None

    @property
    def matches(self) -> bool:
        return self.actual is not None and self.wanted is not None and same_policy(self.actual, self.wanted)

    @property
    def collects_more(self) -> bool:
        """Whether the wanted policy collects cells that the actual one keeps."""
        if self.actual is None or self.wanted is None:
            return False
        before, after = collected_after(self.actual), collected_after(self.wanted)
        return after is not None and (before is None or after < before)

    def __str__(self) -> str:
        if self.wanted is None:
            return f"family {self.family} was not requested and is left alone"
        if self.actual is None:
            return f"family {self.family} is missing, wanted with policy {format_policy(self.wanted)}"
        return f"family {self.family}: policy is {format_policy(self.actual)}, wanted {format_policy(self.wanted)}"


def policies_of(schema: TableSchema) -> dict[str, Policy]:
    """Returns the policy of every family of a table with this schema, including the family ``tidetable``."""
    return {family: schema.policies[family] for family in schema.families} | {SCHEMA_FAMILY: Never()}


def find(name: TableName) -> dict[str, Policy] | None:
    """Returns the policies of the table's families; None if there is no table. Needs only ``bigtable.tables.get``."""
    with _admin(name, resource=f"table {name}") as admin:
        try:
            table = admin.get_table(
                {"name": str(name), "view": Table.View.SCHEMA_VIEW}, retry=None, timeout=READ_TIMEOUT_S
            )
        except NotFound:
            return None
    return {family: from_rule(table.column_families[family].gc_rule) for family in sorted(table.column_families)}


def describe(name: TableName) -> dict[str, Policy]:
    """Returns the policies of the table's families. Raises ServerError if the table does not exist."""
    families = find(name)
    if families is None:
        raise ServerError(name.is_missing)
    return families


def create(name: TableName, schema: TableSchema) -> bool:
    """Creates the table with its families and splits, and stores the schema in it.

    Returns False if another table exists there by now, or got another schema meanwhile; the table is left as it is.
    """
    if not create_bare(name, policies_of(schema), schema.key.split_keys(MAX_SPLITS)):
        return False
    try:
        return write_schema(name, schema)
    except ServerError as problem:
        raise ServerError(
            f"{problem}; the table was created, but does not store its schema yet: store it with: {name.apply_command}"
        ) from problem


def create_bare(name: TableName, policies: Mapping[str, Policy], split_keys: Iterable[bytes] = ()) -> bool:
    """Creates an empty table with these families. Returns False if it exists already."""
    request = CreateTableRequest(
        parent=name.parent,
        table_id=name.table,
        table={"column_families": {family: {"gc_rule": to_rule(policy)} for family, policy in policies.items()}},
        initial_splits=[{"key": key} for key in split_keys],
    )
    # NotFound here means that the instance does not exist.
    with _admin(name, resource=f"instance {name.parent}") as admin:
        try:
            admin.create_table(request, timeout=CHANGE_TIMEOUT_S)
        except AlreadyExists:
            return False
    return True


def differences(actual: Mapping[str, Policy], wanted: Mapping[str, Policy]) -> list[Difference]:
    """Returns the families that are missing, have another policy or were not requested, ordered by name."""
    pairs = [Difference(family, actual.get(family), wanted.get(family)) for family in sorted({*actual, *wanted})]
    return [pair for pair in pairs if not pair.matches]


def apply(name: TableName, changes: Iterable[Difference]) -> None:
    """Adds missing families and sets policies that differ, in one request. Drops no family."""
    modifications = [
        {"id": change.family, "create" if change.actual is None else "update": {"gc_rule": to_rule(change.wanted)}}
        for change in changes
        if change.wanted is not None
    ]
    with _admin(name, resource=f"table {name}") as admin:
        admin.modify_column_families({"name": str(name), "modifications": modifications}, timeout=CHANGE_TIMEOUT_S)


def delete(name: TableName) -> None:
    """Deletes the table with its rows. Raises ServerError if it does not exist."""
    with _admin(name, resource=f"table {name}") as admin:
        admin.delete_table({"name": str(name)}, timeout=CHANGE_TIMEOUT_S)


@contextmanager
def _admin(name: TableName, *, resource: str) -> Iterator[BaseBigtableTableAdminClient]:
    """Opens a client and closes it after the block. Its errors name the resource."""
    check_emulator(BIGTABLE)
    with explained(resource), bigtable.Client(project=name.project, admin=True).table_admin_client as client:
        yield client


# Policies as rules of Bigtable's admin API


def to_rule(policy: Policy) -> GcRule:
    """Returns the rule for the policy's simplest form; the empty rule for ``Never``.

    Raises PolicyError if the rule is too long for Bigtable.
    """
    rule = _rule(simplified(policy))
    if GcRule.pb(rule).ByteSize() > MAX_POLICY_BYTES:
        raise PolicyError(POLICY_TOO_LONG)
    return rule


def from_rule(rule: GcRule) -> Policy:
    """Returns the policy of the rule, in its simplest form."""
    return simplified(_policy(rule))


def _rule(policy: Policy) -> GcRule:
    match policy:
        case Never():
            return GcRule()
        case MaxAge(age):
            return GcRule(max_age=age)
        case MaxVersions(versions):
            return GcRule(max_num_versions=versions)
        case Union(members):
            return GcRule(union=GcRule.Union(rules=[_rule(member) for member in members]))
        case Intersection(members):
            return GcRule(intersection=GcRule.Intersection(rules=[_rule(member) for member in members]))


def _policy(rule: GcRule) -> Policy:
    match GcRule.pb(rule).WhichOneof("rule"):
        case "max_age":
            return MaxAge(rule.max_age)
        case "max_num_versions":
            return MaxVersions(rule.max_num_versions)
        case "union":
            return Union(tuple(map(_policy, rule.union.rules)))
        case "intersection":
            return Intersection(tuple(map(_policy, rule.intersection.rules)))
    return Never()
