"""Options that commands share: the table, formats, times, and files to read."""

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
    instance_id,
    project_id,
    table_id,
    topic_path,
)
from pipeline.core.answers.read_arguments import zone_for
from pipeline.core.notation.documents import MAX_BYTES, is_named_pipe, read_text, text_of
from pipeline.core.notation.durations import parse_duration
from pipeline.core.notation.times import UTC_ZONE, checked_zone, local_text, parse_moment
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
PROJECT, INSTANCE, TABLE = (Parsed("text", check) for check in (project_id, instance_id, table_id))

app_profile_option = click.option(
    "--app-profile",
    metavar="ID",
    default="",
    type=Parsed("text", lambda text: text and app_profile_id(text)),
    show_default="the instance's default",
    help="The app profile by which Bigtable routes reads and writes.",
)


def place_options(*, required: bool) -> Callable[[Command], Command]:
    """Returns ``--project``, ``--instance``, ``--table`` and ``--app-profile``."""

    def add(command: Command) -> Command:
        command = app_profile_option(command)
        command = click.option("--table", required=required, type=TABLE, help="The table's id.")(command)
        command = click.option("--instance", required=required, type=INSTANCE, help="The Bigtable instance's id.")(
            command
        )
        return click.option("--project", required=required, type=PROJECT, help="The Google Cloud project's id.")(
            command
        )

    return add


def table_options(command: Command) -> Command:
    """Adds ``--project``, ``--instance``, ``--table`` and ``--app-profile``; passes ``table``, a TableName."""

    @place_options(required=True)
    @functools.wraps(command)
    def with_table(*args: Any, project: str, instance: str, table: str, app_profile: str, **kwargs: Any) -> Any:
        return command(*args, table=TableName(project, instance, table, app_profile), **kwargs)

    return with_table


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


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Returns ``--format``, which passes ``output``: one of the formats, by default the first."""
    return click.option(
        "--format",
        "output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="The format. Tables round numbers to six digits, and CSV computed statistics to 15; the others are exact."
        if "csv" in formats
        else "The format.",
    )


json_option = click.option(
    "--format",
    "as_json",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    callback=lambda ctx, param, value: value == "json",  # noqa: ARG005 (what click passes)
    help="The format.",
)


DURATION = Parsed("duration", parse_duration)


def limit_option(default: int | None = None) -> Callable[[Command], Command]:
    """Returns ``--limit``, the number of results."""
    return click.option(
        "--limit", type=COUNT, default=default, show_default=bool(default), help="At most this many, the first ones."
    )


def sensor_count_option(most: int, default: int | None = None) -> Callable[[Command], Command]:
    """Returns ``--sensor-count``, required without a default; passes ``sensors``."""
    return click.option(
        "--sensor-count",
        "sensors",
        required=default is None,
        type=click.IntRange(1, most),
        default=default,
        show_default=bool(default),
        help="The number of sensors.",
    )


def schema_option(command: Command) -> Command:
    """Adds ``--schema``, whose file is an :class:`InputText`."""
    return click.option(
        "--schema",
        type=TextFile(),
        help="A file with the table's schema as TOML, or - for standard input. 'tidetable table describe "
        "--format toml' prints one.",
    )(command)


topic_option = click.option(
    "--topic", required=True, type=Parsed("topic", topic_path), help="The job's input, projects/PROJECT/topics/TOPIC."
)
rate_option = click.option(
    "--rate", type=FloatRange(0, min_open=True), help="Limit in events per second. Default: no limit."
)
wait_option = click.option(
    "--wait",
    type=DURATION,
    default="3s",
    show_default=True,
    help="Stop after this long without a new message: Pub/Sub does not report the end of a backlog.",
)
prefix_option = click.option(
    "--prefix", metavar="PREFIX", help="Only sensors whose ids begin with this, or groups whose first values do."
)
allowed_lateness_option = click.option(
    "--allowed-lateness",
    type=DURATION,
    default="1h",
    show_default=True,
    help="The job's --allowed-lateness, plus the delay of its watermark: how long after its end a job that writes the "
    "table may keep a window in its state. 0s if no job is running.",
)
late_firing_option = click.option(
    "--late-firing", type=DURATION, default="60s", show_default=True, help="The job's --late-firing."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation; required without a terminal.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Report, but write nothing.")
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")


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


FROM_HELP = "The start of the range, inclusive: a time such as 2026-02-17T10:30, today, yesterday or -1d."
TO_HELP = "The end of the range, exclusive."

ZONE = Parsed("zone", checked_zone)
"""The name of a time zone."""

time_zone_option = click.option(
    "--time-zone",
    type=ZONE,
    help="The time zone of times without an offset, such as Europe/Berlin. By default that of --tier, if the command "
    "has one, and else UTC.",
)


def asked_range_options(command: Command) -> Command:
    """Adds ``--from``, ``--to`` and ``--time-zone``; passes ``asked``, an :class:`AskedRange`."""

    @click.option("--from", "start", type=MOMENT, help=FROM_HELP)
    @click.option("--to", "end", type=MOMENT, help=TO_HELP)
    @time_zone_option
    @functools.wraps(command)
    def with_asked(*args: Any, start: Moment | None, end: Moment | None, time_zone: str | None, **kwargs: Any) -> Any:
        return command(*args, asked=AskedRange(start, end, time_zone), **kwargs)

    return with_asked


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
