"""What the commands of ``tidetable read`` share: options, the open table, and by what a sensor is found."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from typing import Any

import click

from pipeline.cli.console import report_foreign_rows
from pipeline.cli.options import Command, Parsed, schema_options, table_options
from pipeline.cloud.names import TableName
from pipeline.cloud.reader import SensorTable
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.template import KeyTemplate
from pipeline.core.schema.tokens import MetadataToken, SensorToken, TimeToken, Token
from pipeline.core.times import format_time, parse_time
from pipeline.core.windows import Window

OpenTable = Callable[[], AbstractContextManager[SensorTable]]
Metadata = tuple[tuple[str, str], ...]


def _time(text: str) -> int:
    time_us = parse_time(text)
    try:
        format_time(time_us)
    except OverflowError:
        raise ValueError(f"{text!r} is not within the years 1 to 9999 of UTC") from None
    return time_us


def _field(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(f"{text!r}: it takes NAME=VALUE, as in location=us-west2")
    if "#" in value:
        raise ValueError(f"{text!r}: what row keys are made of can't hold '#'")
    return name, value


def _limit_option(text: str) -> Callable[[Command], Command]:
    return click.option("--limit", type=click.IntRange(min=1), help=text)


def _refuse_metadata(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:  # noqa: ARG001
    if value:
        raise click.UsageError("aggregates are found by the sensor alone; leave --metadata out")


WINDOW = Parsed("window", Window.parse)

_TIME = Parsed("time", _time)
_FROM = click.option("--from", "start_us", type=_TIME, required=True, help="The start of the range, inclusive.")
_TO = click.option("--to", "end_us", type=_TIME, required=True, help="Its end, exclusive.")

sensors_argument = click.argument("sensors", nargs=-1, required=True, metavar="SENSOR...")
limit_option = _limit_option("Print no more than this many, the newest.")
limit_of_many_option = _limit_option("Print no more than this many: the first, sensor by sensor.")
metrics_option = click.option(
    "--metric", "metrics", multiple=True, metavar="METRIC", help="Print these readings alone. Repeatable."
)
metadata_option = click.option(
    "--metadata",
    type=Parsed("name=value", _field),
    multiple=True,
    help="The metadata that sensors are found by, where row keys are made of it, such as location=us-west2. "
    "Repeatable.",
)
# Whoever needs it for readings tries it on aggregates too; "no such option" would not say why not.
no_metadata_option = click.option(
    "--metadata", multiple=True, hidden=True, expose_value=False, callback=_refuse_metadata
)


def range_options(command: Command) -> Command:
    """Adds ``--from`` and ``--to``; the command is given ``start_us`` and ``end_us``."""
    return _FROM(_TO(command))


def reading_options(command: Command) -> Command:
    """Adds what every command has: which table, what is said of its schema, and ``--json`` as ``as_json``.

    The command is given ``open_table``, which opens it for the length of a ``with`` block. The rows that were left out
    of it are told on standard error, and make the exit code 1.
    """

    @table_options
    @schema_options
    @click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each record.")
    @functools.wraps(command)
    def with_table(*args: Any, table: TableName, declared: DeclaredSchema, **kwargs: Any) -> Any:
        left_out = False

        @contextmanager
        def open_table() -> Iterator[SensorTable]:
            nonlocal left_out
            with SensorTable.open(
                table.project, table.instance, table.table, declared, on_foreign=lambda _: None
            ) as opened:
                try:
                    yield opened
                finally:
                    report_foreign_rows(opened.foreign.messages.values(), opened.foreign.count, "left out")
                    left_out = opened.foreign.count > 0

        returned = command(*args, open_table=open_table, **kwargs)
        if left_out:
            sys.exit(1)
        return returned

    return with_table


@contextmanager
def usage_errors() -> Iterator[None]:
    """Makes wrong usage of what a reader can't answer."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def metadata_of_one(key: KeyTemplate, declared: Metadata) -> dict[str, str]:
    """The metadata that one sensor is found by: all that stands before the time in keys has to be said, and no other.

    Raises:
        click.UsageError: something is missing, or there is something by which nothing is found.
    """
    return _checked(declared, fields := _fields_before(TimeToken, key), fields)


def metadata_of_many(key: KeyTemplate, declared: Metadata, *, all_of_it: bool) -> dict[str, str]:
    """The metadata that many sensors lie under: what stands before the sensor in keys, from the front on.

    Args:
        key: the table's.
        declared: what was said.
        all_of_it: whether nothing of it may be left out.

    Raises:
        click.UsageError: as metadata_of_one.
    """
    fields = [] if key.time_first else _fields_before(SensorToken, key)
    names = {name for name, _ in declared}
    needed = fields if all_of_it else fields[: max((i for i, name in enumerate(fields) if name in names), default=0)]
    return _checked(declared, fields, needed)


def _checked(declared: Metadata, fields: list[str], needed: list[str]) -> dict[str, str]:
    known = dict(declared)
    if len(known) < len(declared):
        raise click.UsageError("--metadata: each field can be said once")
    if useless := [name for name in known if name not in fields]:
        raise click.UsageError(
            f"--metadata {useless[0]}: sensors of this table are not found by it"
            + (f", but by {', '.join(fields)}" if fields else "; leave it out")
        )
    if missing := [name for name in needed if name not in known]:
        options = " ".join(f"--metadata {name}=…" for name in missing)
        raise click.UsageError(f"this table finds sensors by their metadata: say {options} too")
    return known


def _fields_before(kind: type[Token], key: KeyTemplate) -> list[str]:
    before = takewhile(lambda part: not isinstance(part, kind), key.parts)
    return [part.name for part in before if isinstance(part, MetadataToken)]
