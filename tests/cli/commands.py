"""All commands of the toolbox, as tests go through them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import click
from click.testing import CliRunner

from pipeline.cli.root import main


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yields every command and group, by the words typed after ``tidetable``."""
    context = click.Context(main)
    for name in main.list_commands(context):
        yield from _with_subcommands(name, main.get_command(context, name))


def _with_subcommands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, sub in getattr(command, "commands", {}).items():
        yield from _with_subcommands(f"{path} {name}", sub)


def params(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns what a command line and an environment pass to a command, which does not run."""
    seen: list[dict[str, Any]] = []
    with patch.object(click.Context, "invoke", lambda context, _, **given: seen.append(given)):
        ran = CliRunner().invoke(main, list(arguments), env=environment)
    assert ran.exit_code == 0, ran.output
    return seen[-1]
