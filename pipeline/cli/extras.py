"""The ``tidetable`` script. If a package of an extra is missing, prints in one line which extra to install."""

import sys

# The packages of the extras that commands import; pyproject.toml declares them.
EXTRAS = {"click": "cli", "rich": "cli", "matplotlib": "charts", "plotext": "charts"}


def main() -> None:
    """Runs the command line and exits."""
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
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        sys.exit(
            f'tidetable: {package} is not installed; install the extra "{extra}" from the checkout: '
            f"pip install '.[{extra}]'"
        )
