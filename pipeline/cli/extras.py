"""The ``tidetable`` script. If a package of an extra is missing, prints in one line which extra to install."""

import gc
import sys

TYPE_CHECKING = False  # as typing's: this module imports next to nothing, since Ctrl-C would print a traceback
if TYPE_CHECKING:
    from typing import NoReturn

# The packages of the extras that commands import; pyproject.toml declares them.
EXTRAS = {
    "apache_beam": "beam",
    "grpc_tools": "beam",
    "click": "cli",
    "rich": "cli",
    "sortedcontainers": "cli",
    "matplotlib": "charts",
    "plotext": "charts",
    "fastapi": "serve",
    "fastapi_offline": "serve",
    "pydantic": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
}


def main() -> None:
    """Runs the command line and exits."""
    gc.set_threshold(50_000)  # imports allocate much and free nothing: Python's 700 would make them an eighth slower
    try:
        from pipeline.cli.entry import run

        run(_commands)
    except KeyboardInterrupt:  # in the first milliseconds
        sys.exit(130)


def _commands() -> None:
    from pipeline.cli.entry import Importing

    try:
        with Importing():
            from pipeline.cli import root
        root.main()
    except ModuleNotFoundError as error:
        exit_naming_extra(error)


def exit_naming_extra(error: ModuleNotFoundError) -> "NoReturn":
    """Exits with one line that names the extra to install. Raises the error if its module is in no extra."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    extra = EXTRAS[package]
    sys.exit(
        f'tidetable: {package} is not installed; install the extra "{extra}" from the checkout: '
        f"pip install '.[{extra}]'"
    )


def check_installed(extra: str) -> None:
    """Raises ModuleNotFoundError if a package of the extra is missing, before a command does anything else."""
    from importlib.util import find_spec

    for package in (package for package, of in EXTRAS.items() if of == extra):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
