"""Options that the commands of ``tidetable read`` share, opening the table, and the metadata that locates sensors."""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.console import report_foreign_rows
from pipeline.cli.entry import Importing
from pipeline.cli.options import (
    COUNT,
    AskedRange,
    Command,
    FloatRange,
    Parsed,
    asked_range_options,
    prefix_option,
    table_options,
)
from pipeline.cloud.connection.names import TableName
from pipeline.core.answers.enough_data import LeastData
from pipeline.core.answers.gaps import Fill
from pipeline.core.notation.text import parse_pair
from pipeline.core.queries.sweeps import Chosen, is_glob
from pipeline.core.queries.windows import sensors_with_windows
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.key_tokens import MetadataToken, SensorToken, TimeToken, Token
from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import parse_window

if TYPE_CHECKING:  # --help does not wait for Google's clients
    from pipeline.cloud.reading.reader import SensorTable

OpenTable = Callable[[], AbstractContextManager["SensorTable"]]
Metadata = tuple[tuple[str, str], ...]

_DAY_US = 86_400_000_000


def _refuse_metadata(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:  # noqa: ARG001
    if value:
        raise click.UsageError("aggregates are located by the sensor alone; remove --metadata")


def _each_once(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> list[str]:  # noqa: ARG001
    return list(dict.fromkeys(value))


sensors_argument = click.argument("sensors", nargs=-1, required=True, metavar="SENSOR...", callback=_each_once)
_globs_argument = click.argument("sensors", nargs=-1, metavar="[SENSOR]...", callback=_each_once)
all_option = click.option("--all", "all_sensors", is_flag=True, help="Print all sensors or groups.")


def many_sensors(command: Command) -> Command:
    """Adds the sensors, of which each may be a glob, ``--all`` and ``--prefix``."""
    return _globs_argument(all_option(prefix_option(command)))


def chosen_sensors(sensors: list[str], prefix: str | None, *, all_sensors: bool) -> Chosen:
    """Returns which sensors a command names. Raises UsageError if it names none, or in two ways."""
    if bool(sensors) + all_sensors + (prefix is not None) != 1:
        raise click.UsageError("pass either sensors or globs such as 'hall-*', or --prefix, or --all")
    return Chosen(sensors, "" if all_sensors else prefix)


def chosen_unless_listed(sensors: list[str], prefix: str | None, *, all_sensors: bool, by_job: bool) -> Chosen | None:
    """Returns :func:`chosen_sensors`; None if a command lists them only by their ids, unless a job reads them."""
    chosen = chosen_sensors(sensors, prefix, all_sensors=all_sensors)
    return chosen if by_job or not sensors or any(map(is_glob, sensors)) else None


def missing_of(table: "SensorTable", chosen: Chosen, tier: Tier | None = None) -> list[str]:
    """Returns the ids and globs that choose no sensor of the table, nor one with windows of the tier alone.

    Seeks the table's sensors unless all have chosen some.
    """
    if chosen.missing:
        of_windows = (
            sensors_with_windows(tier, table.rows.read_selection, prefix, "", lambda _: None)
            for prefix in chosen.prefixes
            if tier
        )
        with suppress(ValueError):  # the table can't list its sensors
            for sensor in chain.from_iterable(chain(of_windows, map(table.sensors, chosen.prefixes))):
                chosen.includes(sensor)
                if not chosen.missing:
                    break
    return chosen.missing


window_option = click.option(
    "--tier",
    type=Parsed("window", parse_window),
    show_default="the table's shortest",
    help="The length of the windows, such as 15m, 1d or 1d@Europe/Berlin.",
)
metrics_option = click.option("--metric", "metrics", multiple=True, metavar="METRIC", help="The metric. Repeatable.")
fresh_option = click.option(
    "--fresh",
    is_flag=True,
    help="Compute windows that are still open from their raw rows, as their final panes will count them.",
)
fill_option = click.option(
    "--fill",
    type=click.Choice([fill.value for fill in Fill]),
    default=Fill.NONE.value,
    show_default=True,
    help="Print windows without a row too: empty (null), with the averages and extremes of the window before "
    "(previous), or with values between those of the windows around (linear).",
)
metadata_option = click.option(
    "--metadata",
    type=Parsed("name=value", parse_pair),
    multiple=True,
    help="Metadata that locates sensors, such as location=us-west2, if row keys contain it. Repeatable.",
)
# Whoever passes it for readings passes it for aggregates too; "no such option" would not explain the error.
no_metadata_option = click.option(
    "--metadata", multiple=True, hidden=True, expose_value=False, callback=_refuse_metadata
)


"""Adds ``--from``, ``--to`` and ``--time-zone``; passes ``asked``, from which :func:`last_day` makes the range."""


def range_options(command: Command) -> Command:
    """Adds ``--from``, ``--to`` and ``--time-zone``, by default the last day; passes ``start_us`` and ``end_us``."""

    @asked_range_options
    @functools.wraps(command)
    def with_range(*args: Any, asked: AskedRange, **kwargs: Any) -> Any:
        start_us, end_us = last_day(*asked.us(kwargs.get("tier")))
        return command(*args, start_us=start_us, end_us=end_us, **kwargs)

    return with_range


def least_options(command: Command) -> Command:
    """Adds ``--min-coverage`` and ``--min-count``; passes ``least``, a :class:`LeastData`."""

    @click.option(
        "--min-coverage",
        type=FloatRange(0, 1),
        metavar="SHARE",
        default=0.0,
        help="Leave out metrics of a window with less than this share, from 0 to 1, of the readings that are expected. "
        "Needs [rate] in the schema.",
    )
    @click.option("--min-count", type=COUNT, help="Leave out metrics of a window with fewer readings than this.")
    @functools.wraps(command)
    def with_least(*args: Any, min_coverage: float, min_count: int | None, **kwargs: Any) -> Any:
        return command(*args, least=LeastData(min_coverage, min_count or 0), **kwargs)

    return with_least


def last_day(start_us: int | None, end_us: int | None) -> tuple[int, int]:
    """Returns a range, which ends now and is a day long unless its ends are set."""
    end_us = time.time_ns() // 1000 if end_us is None else end_us
    return end_us - _DAY_US if start_us is None else start_us, end_us


def reading_options(command: Command) -> Command:
    """Adds the options of the table.

    Passes ``open_table`` to the command, a context manager that opens the table. Foreign rows that were left out are
    reported on standard error and make the exit code 1.
    """

    @table_options
    @functools.wraps(command)
    def with_table(*args: Any, table: TableName, **kwargs: Any) -> Any:
        skipped = False

        @contextmanager
        def open_table() -> Iterator["SensorTable"]:
            with Importing():
                from pipeline.cloud.reading.reader import SensorTable

            nonlocal skipped
            with SensorTable.open(
                table.project,
                table.instance,
                table.table,
                app_profile=table.app_profile,
                on_foreign=lambda _: None,
            ) as opened:
                try:
                    yield opened
                finally:
                    report_foreign_rows(opened.foreign.messages.values(), opened.foreign.count, "left out")
                    skipped = opened.foreign.count > 0

        returned = command(*args, open_table=open_table, **kwargs)
        if skipped:
            sys.exit(1)
        return returned

    return with_table


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns a reader's ValueError into a usage error."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def metadata_of_one(key: KeyTemplate, declared: Metadata) -> dict[str, str]:
    """Returns the metadata that locates one sensor: every field that precedes the time in row keys, and no other.

    Raises:
        click.UsageError: a field is missing, or does not locate sensors.
    """
    return _checked(declared, fields := _fields_before(TimeToken, key), fields)


def metadata_of_many(key: KeyTemplate, declared: Metadata) -> dict[str, str]:
    """Returns the metadata that locates many sensors: the leading fields that precede the sensor in row keys.

    Raises UsageError if a field is missing, or does not locate sensors.
    """
    fields = [] if key.time_first else _fields_before(SensorToken, key)
    names = {name for name, _ in declared}
    needed = fields[: max((i for i, name in enumerate(fields) if name in names), default=0)]
    return _checked(declared, fields, needed)


def _checked(declared: Metadata, fields: list[str], needed: list[str]) -> dict[str, str]:
    known = dict(declared)
    if len(known) < len(declared):
        raise click.UsageError("--metadata: a field can be set only once")
    if useless := [name for name in known if name not in fields]:
        raise click.UsageError(
            f"--metadata {useless[0]} does not locate sensors in this table"
            + (f"; {', '.join(fields)} does" if fields else "; remove it")
        )
    if missing := [name for name in needed if name not in known]:
        options = " ".join(f"--metadata {name}=…" for name in missing)
        raise click.UsageError(f"this table locates sensors by metadata: add {options}")
    return known


def _fields_before(kind: type[Token], key: KeyTemplate) -> list[str]:
    before = takewhile(lambda part: not isinstance(part, kind), key.parts)
    return [part.name for part in before if isinstance(part, MetadataToken)]
