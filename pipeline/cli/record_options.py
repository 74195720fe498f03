"""What commands that read files of readings share: how records are read, and events too old for their table."""

import functools
from collections.abc import Mapping
from typing import Any

import click

from pipeline.cli.options import Command, identifier
from pipeline.cloud.names import TableName
from pipeline.core.schema.expiry import Expiry
from pipeline.core.schema.policies import Policy, format_policy
from pipeline.formats.files import MAX_RECORD_BYTES, TIME_UNITS, FileColumns


def column_options(command: Command) -> Command:
    """Adds ``--sensor-column``, ``--time-column`` and ``--time-unit``; the command is given ``columns``, a Columns."""

    @click.option(
        "--sensor-column", default=FileColumns().sensor, show_default=True, help="The column that names the sensor."
    )
    @click.option(
        "--time-column", default=FileColumns().time, show_default=True, help="The column of the event's time."
    )
    @click.option(
        "--time-unit",
        type=click.Choice(TIME_UNITS),
        default=FileColumns().time_unit,
        show_default=True,
        help="ISO 8601, or seconds, milliseconds or microseconds since the epoch.",
    )
    @functools.wraps(command)
    def with_columns(*args: Any, sensor_column: str, time_column: str, time_unit: str, **kwargs: Any) -> Any:
        return command(*args, columns=FileColumns(sensor_column, time_column, time_unit), **kwargs)

    return with_columns


def optional_table_options(command: Command) -> Command:
    """Adds ``--project``, ``--instance`` and ``--table``, all or none; the command is given ``table``, or None."""

    @click.option("--project", callback=identifier, help="The Google Cloud project of --table.")
    @click.option("--instance", callback=identifier, help="The Bigtable instance of --table.")
    @click.option("--table", callback=identifier, help="The table that the events are for: is one too old for it?")
    @functools.wraps(command)
    def with_table(*args: Any, project: str | None, instance: str | None, table: str | None, **kwargs: Any) -> Any:
        if project and instance and table:
            return command(*args, table=TableName(project, instance, table), **kwargs)
        if project or instance or table:
            raise click.UsageError("--project, --instance and --table tell a table together: give all, or none")
        return command(*args, table=None, **kwargs)

    return with_table


max_record_bytes_option = click.option(
    "--max-record-bytes",
    type=click.IntRange(1, 1 << 30),
    default=MAX_RECORD_BYTES,
    show_default=True,
    metavar="BYTES",
    help="The limit of a line or record. A longer one is refused, and no more than that of it is kept in memory.",
)

accept_expired_option = click.option(
    "--accept-expired", is_flag=True, help="Go on although Bigtable will soon collect events that are too old for it."
)


def expired_message(expired: int, events: int, name: TableName, expiry: Expiry, policies: Mapping[str, Policy]) -> str:
    """How many events are too old, in one line."""
    kept = ", ".join(f"{family}: {format_policy(policies[family])}" for family in expiry.ages)
    return (
        f"{expired:,} of {events:,} events are older than table {name} keeps readings ({kept}): Bigtable collects them "
        "soon after they are written"
    )
