"""Distributions of this environment, linked into another one: offline, and faster than installing them again."""

from importlib.metadata import Distribution
from pathlib import Path


def link(distribution: Distribution, packages: Path) -> None:
    """Links every file of the distribution, except scripts, into another environment's site-packages."""
    for file in distribution.files or ():
        if ".." not in file.parts:
            target = packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(distribution.locate_file(file))
