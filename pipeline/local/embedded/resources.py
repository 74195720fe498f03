"""Names of Pub/Sub's resources, and lists of them in pages."""

import re
from collections.abc import Mapping
from typing import Any

from pipeline.local.embedded.services import invalid

_PROJECT = re.compile(r"projects/[^/]*")
_NAME = re.compile(rf"{_PROJECT.pattern}/(\w+)/(?!goog)[A-Za-z][\w.~+%-]{{2,254}}", re.ASCII)


def check_name(name: str, kind: str) -> None:
    """Refuses what is not a full name of that kind, such as ``topics``."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] != kind:
        raise invalid(f"Invalid [{kind}] name: (name={name})")


def of_project(resources: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Returns a project's resources, by name. Refuses what is not ``projects/`` and an id."""
    if not _PROJECT.fullmatch(project):
        raise invalid(f"Invalid [projects] name: (name={project})")
    return {name: resource for name, resource in resources.items() if name.startswith(f"{project}/")}


def page(resources: Mapping[str, Any], request: Any) -> tuple[list[Any], str]:
    """Returns a page of resources, in the order of their names, and the token of the next page.

    Args:
        resources: the resources by name.
        request: the request, with the size of a page and its token.
    """
    names = sorted(name for name in resources if name >= request.page_token)
    size = request.page_size if request.page_size > 0 else len(names)
    return [resources[name] for name in names[:size]], "".join(names[size : size + 1])
