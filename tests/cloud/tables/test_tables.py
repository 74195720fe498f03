import socket
from collections.abc import Iterator
from datetime import timedelta

import pytest
from google.cloud.bigtable_admin_v2.types import CreateTableRequest, GcRule
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.schema_store import read_schema, write_schema
from pipeline.cloud.tables.tables import from_rule, to_rule
from pipeline.core.schema.gc_policies import (
    Intersection,
    MaxAge,
    MaxVersions,
    Never,
    Policy,
    PolicyError,
    Union,
    format_policy,
    parse_policy,
    simplified,
)
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.tables import unused_name


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that does not exist yet."""
    return unused_name()


@pytest.fixture
def silent_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", f"127.0.0.1:{server.getsockname()[1]}")
        yield


@pytest.fixture
def requested_splits(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The split keys of the last request, as the emulator has only one tablet."""
    create_table = tables.BaseBigtableTableAdminClient.create_table
    keys: list[bytes] = []

    def noted(self: object, request: CreateTableRequest, **kwargs: object) -> object:
        keys[:] = [split.key for split in request.initial_splits]
        return create_table(self, request, **kwargs)

    monkeypatch.setattr(tables.BaseBigtableTableAdminClient, "create_table", noted)
    return keys


@pytest.mark.parametrize(
    ("key", "count", "first", "last"),
    [
        ("{sensor_id}#{reverse_us}", 0, None, None),
        ("{salt:1}#{sensor_id}#{reverse_us}", 15, b"1", b"f"),
        ("{salt:2}#{sensor_id}#{reverse_us}", 255, b"01", b"ff"),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", 31, b"shard-01", b"shard-31"),
        ("{shard:10000}#{sensor_id}#{iso_s}", 249, b"0040", b"9960"),
    ],
)
def test_a_table_is_split_between_salts_or_shards(
    name: TableName, requested_splits: list[bytes], key: str, count: int, first: bytes | None, last: bytes | None
) -> None:
    """A tablet for each salt or shard, or for several adjacent ones if there are too many."""
    assert tables.create(name, parse_schema(f'key = "{key}"'))
    assert len(requested_splits) == count
    assert requested_splits == sorted(requested_splits)
    if requested_splits:
        assert (requested_splits[0], requested_splits[-1]) == (first, last)


def test_a_schema_stored_meanwhile_stays(name: TableName, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another program stores its schema first, the result is as if the table had existed."""
    create_bare, another = tables.create_bare, parse_schema('layout = "serialized"')

    def overtaken(*asked: object) -> bool:
        assert create_bare(*asked)
        return write_schema(name, another)

    monkeypatch.setattr(tables, "create_bare", overtaken)
    assert not tables.create(name, TableSchema.default())
    assert read_schema(name) == another


@pytest.mark.usefixtures("silent_server")
def test_an_unresponsive_server_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read fails after its timeout, without a retry."""
    monkeypatch.setattr(tables, "check_emulator", lambda _: None)  # as if it had answered before
    monkeypatch.setattr(tables, "READ_TIMEOUT_S", 0.5)
    with pytest.raises(ServerError, match="the server cannot be reached"):
        tables.find(TableName("test-project", "test-instance", "t"))


# Policies as rules


def union(*rules: GcRule) -> GcRule:
    return GcRule(union=GcRule.Union(rules=rules))


def intersection(*rules: GcRule) -> GcRule:
    return GcRule(intersection=GcRule.Intersection(rules=rules))


def collects(rule: GcRule, age: timedelta, newer_versions: int) -> bool:
    """Whether a rule collects a cell, by the API's documentation."""
    match GcRule.pb(rule).WhichOneof("rule"):
        case None:
            return False
        case "max_age":
            return age > rule.max_age
        case "max_num_versions":
            return newer_versions >= rule.max_num_versions
        case "union":
            return any(collects(member, age, newer_versions) for member in rule.union.rules)
        case _:
            return all(collects(member, age, newer_versions) for member in rule.intersection.rules)


DAYS = [GcRule(max_age=timedelta(days=days)) for days in range(10)]
VERSIONS = [GcRule(max_num_versions=versions) for versions in range(10)]

ages = st.builds(timedelta, microseconds=st.integers(1, 10**7)) | st.builds(timedelta, days=st.integers(1, 106_751))
numbers = st.integers(1, 65_535)
rules = st.recursive(
    st.builds(GcRule, max_age=ages) | st.builds(GcRule, max_num_versions=numbers) | st.just(GcRule()),
    lambda members: st.lists(members, min_size=1, max_size=3).flatmap(
        lambda chosen: st.sampled_from([union(*chosen), intersection(*chosen)])
    ),
    max_leaves=8,
)
policies = st.recursive(
    st.builds(MaxAge, ages) | st.builds(MaxVersions, numbers) | st.just(Never()),
    lambda members: st.lists(members, max_size=3).flatmap(
        lambda chosen: st.sampled_from([Union(tuple(chosen)), Intersection(tuple(chosen))])
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("never", GcRule()),
        ("maxage=1500ms", GcRule(max_age=timedelta(milliseconds=1500))),
        ("maxage=3d || (maxage=1d && maxversions=2)", union(DAYS[3], intersection(DAYS[1], VERSIONS[2]))),
    ],
)
def test_a_policy_is_a_rule_and_back(text: str, rule: GcRule) -> None:
    """Every kind of policy converts to its rule and back."""
    assert to_rule(parse_policy(text)) == rule
    assert from_rule(rule) == parse_policy(text)


@given(policies)
def test_only_the_simplest_form_is_sent(policy: Policy) -> None:
    """A policy comes back in its simplest form, and its rule is the rule of that form."""
    rule = to_rule(policy)
    assert from_rule(rule) == simplified(policy)
    assert rule == to_rule(simplified(policy))


@given(rules, ages, st.integers(0, 65_535))
def test_what_is_read_collects_the_same_cells(rule: GcRule, age: timedelta, newer_versions: int) -> None:
    """The simplest form of a rule, whoever set it, decides on every cell as the rule itself does."""
    assert collects(to_rule(from_rule(rule)), age, newer_versions) == collects(rule, age, newer_versions)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (union(DAYS[1], union(DAYS[2], GcRule())), "maxage=1d || maxage=2d"),
        (intersection(DAYS[1], GcRule()), "never"),
        (union(), "never"),
        (GcRule(max_age=timedelta(microseconds=1500)), "maxage=1.5ms"),
        (GcRule(max_num_versions=0), "maxversions=0"),
    ],
)
def test_a_rule_that_cbt_would_not_set_can_be_printed(rule: GcRule, text: str) -> None:
    """A rule that only the API can set is simplified if possible and otherwise printed as it is."""
    assert format_policy(from_rule(rule)) == text


def test_a_rule_too_long_for_bigtable_is_refused() -> None:
    """Bigtable stores 500 bytes, less than the grammar's limits allow; one byte more is refused."""
    longest = (MaxVersions(1),) * 123
    assert GcRule.pb(to_rule(Union((*longest, MaxVersions(128))))).ByteSize() == 500
    for policy in (
        Union((*longest, MaxVersions(2**14))),
        parse_policy("maxage=1500ms || maxage=1500ms && " * 18 + "maxage=1d"),
    ):
        with pytest.raises(PolicyError) as refusal:
            to_rule(policy)
        assert str(refusal.value) == (
            "the policy is too long: Bigtable stores at most 500 bytes; "
            "an example: maxage=30d || (maxage=3d && maxversions=100)"
        )
