"""Distributions of this environment, linked into another one: offline, and faster than installing them again."""

from importlib.metadata import Distribution
from pathlib import Path


def link(distribution: Distribution, packages: Path) -> None:
    """Links the distribution's packages and other files, except scripts, into another environment's site-packages."""
    installed = Path(distribution.locate_file(""))
    for file in distribution.files or ():
        if ".." not in file.parts:
            folders = [Path(*file.parts[:n]) for n in range(1, len(file.parts))]
            # A whole folder, with what is compiled in it, unless distributions share it.
            own = (
                each for each in folders if each.suffix == ".dist-info" or (installed / each / "__init__.py").exists()
            )
            target = packages / next(own, file)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(installed / target.relative_to(packages))
