"""Options that commands share: which table, and what is said of its schema."""

import functools
import re
from collections.abc import Callable
from typing import Any

import click

from pipeline.cloud.names import TableName
from pipeline.core.schema.declared import DeclaredSchema

Command = Callable[..., Any]


def table_options(command: Command) -> Command:
    """Adds ``--project``, ``--instance`` and ``--table``; the command is given ``table``, a TableName."""

    @click.option("--project", required=True, callback=identifier, help="The Google Cloud project's id.")
    @click.option("--instance", required=True, callback=identifier, help="The Bigtable instance's id.")
    @click.option("--table", required=True, callback=identifier, help="The table's id.")
    @functools.wraps(command)
    def with_table(*args: Any, project: str, instance: str, table: str, **kwargs: Any) -> Any:
        return command(*args, table=TableName(project, instance, table), **kwargs)

    return with_table


def schema_options(command: Command) -> Command:
    """Adds ``--schema`` and ``--raw-family``, ``--stats-family``, ``--meta-family``; the command is given ``declared``.

    ``declared`` is a :class:`~pipeline.core.schema.declared.DeclaredSchema`: usually empty, as tables store theirs.
    """

    @click.option(
        "--schema",
        type=click.Choice(["default"]),
        help="Say that the table has the default schema: for one with rows that does not say its schema itself.",
    )
    @_family_option("--raw-family", "readings")
    @_family_option("--stats-family", "aggregates")
    @_family_option("--meta-family", "metadata")
    @functools.wraps(command)
    def with_declared(
        *args: Any,
        schema: str | None,
        raw_family: str | None,
        stats_family: str | None,
        meta_family: str | None,
        **kwargs: Any,
    ) -> Any:
        families = [family for family in (raw_family, stats_family, meta_family) if family is not None]
        if len(set(families)) < len(families):
            raise click.UsageError("--raw-family, --stats-family and --meta-family must differ")
        declared = DeclaredSchema(schema == "default", raw_family, stats_family, meta_family)
        return command(*args, declared=declared, **kwargs)

    return with_declared


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


def _family_option(flag: str, holds: str) -> Callable[[Command], Command]:
    return click.option(
        flag,
        callback=identifier,
        help=f"The column family of {holds} in the default schema; must agree with the table's own schema.",
    )


def identifier(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """An option's callback: the value is an id, or a usage error."""
    # The emulator takes any text for an id, and in a path an id with a slash would name something else.
    if value is not None and not re.fullmatch(r"[^\s/]+", value):
        raise click.BadParameter(f"{value!r} is not an id; it takes the id alone, without the path around it")
    return value
