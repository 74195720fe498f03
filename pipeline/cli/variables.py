"""The environment variables of options: ``TIDETABLE_PROJECT`` for ``--project``, in every command that has it."""

from collections.abc import Iterator

import click

# Consent, and what decides whether anything is written, belongs to one command line: a setting made long ago and
# elsewhere must not delete a table.
COMMAND_LINE_ONLY = frozenset({"accept-expired", "ack", "apply", "dry-run", "force", "help", "yes"})

# These mean one thing in one command and another in the next. A setting has to name the command.
OF_ONE_COMMAND = frozenset({"dead-letters", "output", "schema", "sensors", "tier", "window"})


def settings_of(command: click.Command) -> Iterator[tuple[click.Option, list[str]]]:
    """Yields the options that can be set outside the command line, with their long names, without dashes."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = [name[2:] for name in option.opts if name.startswith("--") and name[2:] not in COMMAND_LINE_ONLY]
            if names:
                yield option, names


def name_variables(command: click.Command, path: str) -> None:
    """Gives every option of the command its environment variables. An empty variable counts as not set.

    Args:
        command: changed in place. Its subcommands stay as they are.
        path: the command as typed after ``tidetable``, such as ``read plot``.
    """
    for option, names in settings_of(command):
        shared = [variable(name) for name in names if name not in OF_ONE_COMMAND]
        option.envvar = [*(variable(f"{path} {name}") for name in names), *shared]


def variable(name: str) -> str:
    """Returns the environment variable of an option, or of a command and an option."""
    return "TIDETABLE_" + name.replace("-", "_").replace(" ", "_").upper()
