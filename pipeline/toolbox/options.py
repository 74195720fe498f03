"""Options that commands share: which table, and what its families are called."""

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from pipeline.cloud.names import TableName
from pipeline.core.rows import Families

Command = Callable[..., Any]


def table_options(command: Command) -> Command:
    """Adds ``--project``, ``--instance`` and ``--table``; the command is given ``table``, a TableName."""

    @click.option("--project", required=True, callback=_identifier, help="The Google Cloud project's id.")
    @click.option("--instance", required=True, callback=_identifier, help="The Bigtable instance's id.")
    @click.option("--table", required=True, callback=_identifier, help="The table's id.")
    @functools.wraps(command)
    def with_table(*args: Any, project: str, instance: str, table: str, **kwargs: Any) -> Any:
        return command(*args, table=TableName(project, instance, table), **kwargs)

    return with_table


def family_options(command: Command) -> Command:
    """Adds ``--raw-family``, ``--stats-family`` and ``--meta-family``; the command is given ``families``."""

    @_family_option("--raw-family", Families.raw, "readings")
    @_family_option("--stats-family", Families.stats, "aggregates")
    @_family_option("--meta-family", Families.meta, "metadata")
    @functools.wraps(command)
    def with_families(*args: Any, raw_family: str, stats_family: str, meta_family: str, **kwargs: Any) -> Any:
        if len({raw_family, stats_family, meta_family}) < 3:
            raise click.UsageError("--raw-family, --stats-family and --meta-family must differ")
        return command(*args, families=Families(raw_family, stats_family, meta_family), **kwargs)

    return with_families


class Parsed(click.ParamType):
    """A text that a function reads, with a ValueError that says what is wrong with it."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _family_option(flag: str, default: str, holds: str) -> Callable[[Command], Command]:
    return click.option(
        flag, default=default, show_default=True, callback=_identifier, help=f"The column family of {holds}."
    )


def _identifier(ctx: click.Context, param: click.Parameter, value: str) -> str:  # noqa: ARG001 (click's signature)
    # The emulator takes any text for an id, and in a path an id with a slash would name something else.
    if not re.fullmatch(r"[^\s/]+", value):
        raise click.BadParameter(f"{value!r} is not an id; it takes the id alone, without the path around it")
    return value
