"""Parses Terraform files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hcl2

TERRAFORM = Path(__file__).parent.parent.parent / "templates/terraform"
MODULE = sorted(TERRAFORM.glob("*.tf"))


def plain(value: Any) -> Any:
    """Returns the parser's result with strings unquoted, and without the parser's marks and comments."""
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return value[1:-1].replace("\\\\", "\\").replace('\\"', '"')
    return value


def parsed(paths: Iterable[Path]) -> dict[str, list[dict[str, Any]]]:
    """Returns the files' blocks by kind: lists of one-entry dictionaries."""
    blocks: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for kind, found in plain(hcl2.loads(path.read_text())).items():
            blocks.setdefault(kind, []).extend(found)
    return blocks


BLOCKS = parsed(MODULE)
RESOURCES = {
    (kind, name): body for block in BLOCKS["resource"] for kind, named in block.items() for name, body in named.items()
}
DATA = {(kind, name): body for block in BLOCKS["data"] for kind, named in block.items() for name, body in named.items()}
VARIABLES = {name: body for block in BLOCKS["variable"] for name, body in block.items()}
LOCALS = {name: value for block in BLOCKS["locals"] for name, value in block.items()}


def of_kind(kind: str) -> dict[str, Any]:
    """Returns the resources of a kind, by name."""
    return {name: body for (found, name), body in RESOURCES.items() if found == kind}
