"""Converts garbage-collection policies to the ``GcRule`` of Bigtable's admin API and back."""

from google.cloud.bigtable_admin_v2.types import GcRule

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
    simplified,
)


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
