"""Every argument and block of the Terraform module is one that its provider knows."""

import json

import pytest

from tests.templates.provider_schema import EXTRACT, used

SCHEMAS = json.loads(EXTRACT.read_text())
USED = used()
# Terraform's own.
META = {"count", "depends_on", "for_each", "lifecycle", "provider"}


def problems(body, schema, where):
    """Returns what the provider would refuse in a body and in its blocks, one line each."""
    blocks = {name: value for name, value in body.items() if name in schema["blocks"]}
    dynamic = {name: made["content"] for each in body.get("dynamic", []) for name, made in each.items()}
    present = set(body) - {"dynamic"} | set(dynamic)
    found = [f"{where} has no {name}" for name in present - {*schema["required"], *schema["optional"]}]
    found += [f"{where} needs {name}" for name in set(schema["required"]) - present]
    found += [f"{where}: {name} is no block" for name in set(dynamic) - set(schema["blocks"])]
    for name, bodies in (blocks | dynamic).items():
        if name not in schema["blocks"]:
            continue
        if not isinstance(bodies, list):
            found.append(f"{where}: {name} is a block")
            continue
        for inner in bodies:
            found += problems(inner, schema["blocks"][name], f"{where}.{name}")
    return found


def without_meta(body):
    return {name: value for name, value in body.items() if name not in META}


def test_the_extract_has_every_kind():
    """The extract has each kind that the module uses, and no other."""
    assert set(SCHEMAS) == set(USED), "run: python -m tests.templates.provider_schema"


@pytest.mark.parametrize("kind", sorted(USED))
def test_the_provider_accepts(kind):
    """Every argument and block exists, at its place, and none that is required is missing."""
    for body in USED[kind]:
        assert problems(without_meta(body), SCHEMAS[kind], kind) == []


@pytest.mark.parametrize(
    ("kind", "change", "refused"),
    [
        ("google_pubsub_subscription", {"retry_policy": "x"}, "google_pubsub_subscription: retry_policy is a block"),
        ("google_pubsub_topic", {"name": None}, "google_pubsub_topic needs name"),
        (
            "google_bigtable_instance",
            {"dynamic": [{"cluster": {"content": [{"cluster_id": "x", "zones": "y"}]}}]},
            "google_bigtable_instance.cluster has no zones",
        ),
    ],
)
def test_mistakes_are_found(kind, change, refused):
    """A wrong name, a missing argument and a block that is none are found, in nested and in dynamic blocks too."""
    body = without_meta(USED[f"resource {kind}"][0]) | change
    body = {name: value for name, value in body.items() if value is not None}
    assert refused in problems(body, SCHEMAS[f"resource {kind}"], kind)
