"""Options of the commands that read files of readings, and the message about events too old for their table."""

import functools
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from pipeline.cli.options import Command, place_options
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.gc_policies import Policy, format_policy
from pipeline.core.schema.retention import Expiry
from pipeline.formats.values import MAX_RECORD_BYTES, TIME_UNITS, FileColumns


def column_options(command: Command) -> Command:
    """Adds ``--sensor-column``, ``--time-column`` and ``--time-unit``; passes ``columns``, a FileColumns."""

    @click.option(
        "--sensor-column",
        default=FileColumns().sensor,
        show_default=True,
        help="The column with the sensor's id; for a file a sensor, {file.stem}, {file.folder} or {file}.",
    )
    @click.option(
        "--time-column", default=FileColumns().time, show_default=True, help="The column with the event time."
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
    """Adds ``--project``, ``--instance`` and ``--table``, all or none, and ``--app-profile``.

    Passes ``table``, a TableName or None.
    """

    @place_options(required=False)
    @functools.wraps(command)
    def with_table(
        *args: Any, project: str | None, instance: str | None, table: str | None, app_profile: str, **kwargs: Any
    ) -> Any:
        if project and instance and table:
            return command(*args, table=TableName(project, instance, table, app_profile), **kwargs)
        source = click.get_current_context().get_parameter_source
        # A variable or a profile may name a project for other commands.
        if ParameterSource.COMMANDLINE in map(source, ("project", "instance", "table")):
            raise click.UsageError("--project, --instance and --table name a table together: set all three or none")
        return command(*args, table=None, **kwargs)

    return with_table


max_record_bytes_option = click.option(
    "--max-record-bytes",
    type=click.IntRange(1, 1 << 30),
    default=MAX_RECORD_BYTES,
    show_default=True,
    metavar="BYTES",
    help="Refuse longer lines and records, without reading them into memory.",
)

accept_expired_option = click.option(
    "--accept-expired", is_flag=True, help="Continue even if Bigtable will soon collect events because of their age."
)


def expired_message(
    expired: int, events: int, name: TableName, expiry: Expiry, policies: Mapping[str, Policy], done: str
) -> str:
    """Returns one line that says how many events are too old for the table, and how to go on.

    Args:
        expired: the number of these events.
        events: the number of all events.
        name: the table.
        expiry: the ages by which the table's families collect readings.
        policies: the policies of the families.
        done: the word for the action that did not take place: "written" or "published".
    """
    kept = ", ".join(f"{family}: {format_policy(policies[family])}" for family in expiry.ages)
    longer = " ".join(f"--gc {family}=POLICY" for family in expiry.ages)
    return (
        f"{expired:,} of {events:,} events are too old for table {name} ({kept}): Bigtable would collect them soon, "
        f"and their windows would count only what is left; nothing was {done}. Keep readings longer with "
        f"{name.apply_command} {longer}, or pass --accept-expired to have them {done} anyway"
    )
