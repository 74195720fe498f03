"""Options that commands share: the table, its declared schema, times, and files to read."""

import functools
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from pipeline.cloud.connection.names import (
    TableName,
    app_profile_id,
    family_name,
    instance_id,
    project_id,
    table_id,
)
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.notation.documents import MAX_BYTES, is_named_pipe, read_text, text_of
from pipeline.core.notation.times import local_text, parse_moment
from pipeline.core.notation.zones import UTC_ZONE, checked_zone
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.windows import Window

Command = Callable[..., Any]

MAX_COUNT = 1_000_000_000
COUNT = click.IntRange(1, MAX_COUNT)
"""A number of records. A larger one is a typing error."""


class Parsed(click.ParamType):
    """A parameter type that a function parses; its ValueError becomes the usage error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


# The types of options that name a resource. click would accept any text, and so do the emulators.
PROJECT, INSTANCE, TABLE, FAMILY = (Parsed("text", check) for check in (project_id, instance_id, table_id, family_name))

app_profile_option = click.option(
    "--app-profile",
    metavar="ID",
    default="",
    type=Parsed("text", lambda text: text and app_profile_id(text)),
    show_default="the instance's default",
    help="The app profile by which Bigtable routes reads and writes.",
)


def table_options(command: Command) -> Command:
    """Adds ``--project``, ``--instance``, ``--table`` and ``--app-profile``; passes ``table``, a TableName."""

    @click.option("--project", required=True, type=PROJECT, help="The Google Cloud project's id.")
    @click.option("--instance", required=True, type=INSTANCE, help="The Bigtable instance's id.")
    @click.option("--table", required=True, type=TABLE, help="The table's id.")
    @app_profile_option
    @functools.wraps(command)
    def with_table(*args: Any, project: str, instance: str, table: str, app_profile: str, **kwargs: Any) -> Any:
        return command(*args, table=TableName(project, instance, table, app_profile), **kwargs)

    return with_table


def schema_options(command: Command) -> Command:
    """Adds ``--schema`` and ``--raw-family``, ``--stats-family``, ``--meta-family``; passes ``declared``.

    ``declared`` is a :class:`~pipeline.core.schema.changes.DeclaredSchema`, usually empty: a table stores its schema.
    """

    @click.option(
        "--schema",
        type=click.Choice(["default"]),
        help="Use the default schema for a table that has rows but stores no schema.",
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


_BEAM_FLAGS = "tidetable.beam_flags"


class BeamCommand(click.Command):
    """Keeps flags after ``--`` for Beam, instead of parsing them as arguments of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        if any(each.startswith("--") for each in args[at + 1 :]):
            ctx.meta[_BEAM_FLAGS], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- BEAM_FLAGS...]"]


def beam_flags() -> list[str] | None:
    """Returns the flags that the running :class:`BeamCommand` got for Beam; None without any."""
    return click.get_current_context().meta.get(_BEAM_FLAGS)


class FloatRange(click.FloatRange):
    """A number in a range. NaN is in none, which click does not refuse: no comparison finds it outside."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


# ISO 8601, or relative to now: see parse_moment.
TIME = Parsed("time", lambda text: parse_moment(text, time.time_ns() // 1000))


class Moment(NamedTuple):
    """A time as it was typed, whose zone other options may tell."""

    text: str
    now_us: int

    def us(self, zone: str = UTC_ZONE) -> int:
        """Returns the time in microseconds. Raises ValueError."""
        return parse_moment(self.text, self.now_us, zone)


def _moment(text: str) -> Moment:
    found = Moment(text, time.time_ns() // 1000)
    found.us()
    return found


MOMENT = Parsed("time", _moment)
"""Like :data:`TIME`, for a :class:`Moment`."""


class AskedRange(NamedTuple):
    """A range of time as it was typed: either end may be missing, and times without an offset have no zone yet."""

    start: Moment | None
    end: Moment | None
    time_zone: str | None

    def us(self, tier: Window | None = None) -> tuple[int | None, int | None]:
        """Returns both ends in microseconds. Tells on standard error in which zone they are, if that matters.

        Args:
            tier: the tier whose zone times without an offset have, unless --time-zone names one.

        Raises:
            click.UsageError: a time is outside the years 1 to 9999 in UTC.
        """
        zone, ends = zone_for(self.time_zone, tier), (self.start, self.end)
        try:
            found = [each and each.us(zone) for each in ends]
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        if found != [each and each.us() for each in ends]:
            told = zip(("from", "to"), found, strict=True)
            shown = " ".join(f"{name} {local_text(time_us, zone)}" for name, time_us in told if time_us is not None)
            click.echo(f"in the time zone {zone}: {shown}", err=True)
        return found[0], found[1]


ZONE = Parsed("zone", checked_zone)
"""The name of a time zone."""

time_zone_option = click.option(
    "--time-zone",
    type=ZONE,
    help="The time zone of times without an offset, such as Europe/Berlin. By default that of --tier, if the command "
    "has one, and else UTC.",
)


def asked_range_options(start_help: str, end_help: str) -> Callable[[Command], Command]:
    """Adds ``--from``, ``--to`` and ``--time-zone``; passes ``asked``, an :class:`AskedRange`."""

    def add(command: Command) -> Command:
        @click.option("--from", "start", type=MOMENT, help=start_help)
        @click.option("--to", "end", type=MOMENT, help=end_help)
        @time_zone_option
        @functools.wraps(command)
        def with_asked(
            *args: Any, start: Moment | None, end: Moment | None, time_zone: str | None, **kwargs: Any
        ) -> Any:
            return command(*args, asked=AskedRange(start, end, time_zone), **kwargs)

        return with_asked

    return add


def _family_option(flag: str, contents: str) -> Callable[[Command], Command]:
    return click.option(
        flag,
        type=FAMILY,
        help=f"The column family of {contents} in the default schema; must match a schema that the table stores.",
    )


class InputPath(click.Path):
    """The path of a file, for commands that read it piece by piece."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if is_named_pipe(path):
            self.fail(f"File {str(path)!r} is a named pipe, not a file.", param, ctx)
        return path


class InputText(NamedTuple):
    """The text of a file, and the file's name for messages."""

    name: str
    text: str


class TextFile(click.ParamType):
    """A file that a person wrote, or ``-`` for standard input; the command receives an :class:`InputText`."""

    name = "filename"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, InputText):
            return value
        name = "<stdin>" if value == "-" else str(value)
        try:
            if value != "-":
                return InputText(name, read_text(Path(value)))
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
            return InputText(name, text_of(data))
        except ValueError as error:
            self.fail(f"{name}: {error}", param, ctx)
