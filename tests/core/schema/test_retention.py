import pytest

from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.retention import Expiry
from pipeline.core.schema.toml import parse_schema

SCHEMA = parse_schema("metrics = { short = ['log_*'], raw = ['*'] }\ntiers = { 1h = 'hours' }\n")
DAY_US = 86_400_000_000
NOW_US = 20_000 * DAY_US


def expiry(**policies):
    return Expiry.of(SCHEMA, {family: parse_policy(policy) for family, policy in policies.items()})


@pytest.mark.parametrize(
    ("days", "metrics", "expires"),
    [
        (1, {"log_a"}, False),
        (2, {"log_a"}, True),
        (2, {"a"}, False),
        (2, {"a", "log_a"}, True),
        (30, {"a"}, False),
        (31, {"a"}, True),
    ],
)
def test_each_family_has_its_own_age(days, metrics, expires):
    """An event expires with the first of its readings, by the policy of the reading's family."""
    of_two = expiry(short="maxage=1d", raw="maxage=30d || maxversions=3", meta="maxage=1s", hours="maxage=1s")
    assert of_two.shortest_us == DAY_US
    assert of_two.expires(NOW_US - days * DAY_US, metrics, NOW_US) is expires


def test_nothing_expires_without_an_age():
    """Events never expire if no policy has an age, or if a family's policy is unknown."""
    none = expiry(short="never", raw="maxversions=1")
    assert none.shortest_us is None
    assert not none.expires(0, {"a", "log_a"}, NOW_US)
    assert expiry().shortest_us is None


@pytest.mark.parametrize(
    ("text", "days"), [("", None), ("metadata_alone = true", 2), ("metadata_alone = true\nlayout = 'serialized'", 30)]
)
def test_metadata_alone(text, days):
    """An event of metadata alone expires by the family that stores it; readings have their own."""
    policies = {"raw": parse_policy("maxage=30d"), "meta": parse_policy("maxage=2d")}
    found = Expiry.of(parse_schema(text), policies)
    for age in (2, 30):
        expires = [found.expires(NOW_US - age * DAY_US - more_us, (), NOW_US, {"status"}) for more_us in (0, 1)]
        assert expires == [days is not None and days < age, days is not None and days <= age]
    assert not found.expires(NOW_US - 30 * DAY_US, {"t"}, NOW_US, {"status"})
