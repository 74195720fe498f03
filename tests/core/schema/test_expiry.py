from datetime import timedelta

import pytest

from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.policies import parse_policy
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
    """An event is too old when one of its readings is, by the family that takes it."""
    of_two = expiry(short="maxage=1d", raw="maxage=30d || maxversions=3", meta="maxage=1s", hours="maxage=1s")
    assert of_two.shortest == timedelta(days=1)
    assert of_two.expires(NOW_US - days * DAY_US, metrics, NOW_US) is expires


def test_where_nothing_is_collected_by_age_nothing_is_too_old():
    """Nor is it where the policy of a family is not known."""
    none = expiry(short="never", raw="maxversions=1")
    assert none.shortest is None
    assert not none.expires(0, {"a", "log_a"}, NOW_US)
    assert expiry().shortest is None
