"""Parses templates/Dockerfile into instructions, with the values of its variables."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "templates/Dockerfile"


class Instruction(NamedTuple):
    """``COPY a b`` is ("COPY", "a b")."""

    keyword: str
    text: str


def instructions() -> list[Instruction]:
    """Returns all instructions in order, without comments, with lines joined and ARG and ENV expanded."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    variables: dict[str, str] = {}
    found = []
    for line in filter(None, joined.splitlines()):
        keyword, text = line.split(maxsplit=1)
        text = re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], text)
        if keyword in ("ARG", "ENV"):
            variables.update(assignment.split("=", 1) for assignment in text.split())
        found.append(Instruction(keyword, text))
    return found


def texts(keyword: str) -> list[str]:
    """Returns the text of each instruction of that name."""
    return [text for each, text in instructions() if each == keyword]


def environment() -> dict[str, str]:
    """Returns the variables that ENV sets."""
    return dict(assignment.split("=", 1) for text in texts("ENV") for assignment in text.split())
