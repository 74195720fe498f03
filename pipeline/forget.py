"""``tidetable forget``: removes every row of sensors, and proves by reading that nothing is left."""

import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

import click

from pipeline.cli.console import print_json_line, progress_bar, report_foreign_rows
from pipeline.cli.options import dry_run_option, json_option, table_options, yes_option
from pipeline.cloud.connection.names import TableName
from pipeline.core.answers.read_arguments import listed_sensors
from pipeline.core.notation.text import plain
from pipeline.core.panes.woken_windows import notes_range, without_sensors
from pipeline.core.queries.reads import ForeignRows, ReadRows, RowSelection
from pipeline.core.queries.rows_of_sensor import KINDS, rows_of_sensor
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import ShardWindow
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.rows.rollup_rows import FAMILY, MEMBERS, parse_members_key
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema

if TYPE_CHECKING:
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.writing.rewriter import Rewriter

CONTRIBUTIONS = "contributions to roll-ups"
_COUNTED = (*KINDS, CONTRIBUTIONS)
_BATCH = 1000  # rows in a request
_MOST_SENSORS = 1000
_KEYS = CellSelection((), keys_only=True)
_TOGETHER = 64  # windows of shards, whose rows are in memory together

_COMES_BACK = """\
What can bring rows back: a running job with open windows of these sensors, and their messages,
dead letters or files that are not written yet. Stop their publisher, wait until the job's
allowed lateness has passed, or drain the job, and forget them again.
Backups of the table still contain them."""


@click.command()
@click.argument("sensors", nargs=-1, required=True, metavar="SENSOR...")
@dry_run_option
@yes_option
@json_option
@table_options
def forget(
    sensors: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    table: TableName,
) -> None:
    """Remove every row of each SENSOR, and prove by reading that nothing is left.

    Removes raw rows, aggregate rows of all tiers, rows of newest readings and of alerts, and listed windows, in every
    layout. Also removes what the sensor contributed to roll-ups: the rows of its groups are merged again from the other
    sensors. Asks first on a terminal; elsewhere it needs --yes. If it is interrupted, run it again.

    If row keys begin with the time or with metadata, the server searches all raw rows for those of the sensor.

    \b
    Exit codes:
      0  no row of the sensors is left
      1  rows are left, because a job wrote them meanwhile; or the table can't be read or written
      2  wrong usage
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    names = _checked(sensors)
    if not (dry_run or yes or (sys.stdin is not None and sys.stdin.isatty())):
        raise click.UsageError("nobody can confirm here that the sensors are to be forgotten; pass --yes, or --dry-run")
    from pipeline.cloud.scanning.row_reader import RowReader
    from pipeline.cloud.tables.schema_store import agreed_schema
    from pipeline.cloud.writing.rewriter import Rewriter  # slow to import, and --help does not need them

    with ExitStack() as connections:
        rows = connections.enter_context(RowReader.open(table))
        rows_of = _SensorRows(rows, agreed_schema(rows))
        found = {name: rows_of.count(name) for name in names}
        if dry_run or not any(map(Counter.total, found.values())):
            _print(found, "would be removed" if dry_run else "removed", as_json=as_json)
            rows_of.report()
            return
        if not yes:
            _print(found, "will be removed", as_json=False)
            click.confirm(f"Remove them from table {table}?", abort=True, err=True)
        rows_of.remove(found, connections.enter_context(Rewriter.open(table)))
        left = {name: rows_of.count(name) for name in names}
    _print(found, "removed", as_json=as_json, left=left)
    click.echo(_COMES_BACK, err=True)
    rows_of.report()
    remaining = {name: count for name, count in left.items() if count.total()}
    for name, count in remaining.items():
        click.echo(f"Error: {plain(name)} has rows again: {_shown(count)}; something still writes them", err=True)
    sys.exit(1 if remaining else 0)


def _checked(sensors: tuple[str, ...]) -> list[str]:
    """Returns each sensor once. Raises click.UsageError for too many, or for a text that can't be a sensor's id."""
    try:
        names = listed_sensors(sensors)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if len(names) > _MOST_SENSORS:
        raise click.UsageError(f"{len(names):,} sensors are more than {_MOST_SENSORS:,}; forget them in several calls")
    return names


class _SensorRows:
    """The rows of sensors in one table."""

    def __init__(self, rows: "RowReader", schema: TableSchema) -> None:
        self._read = rows.read_selection
        self._schema = schema
        self._foreign = ForeignRows()

    def count(self, sensor_id: str) -> Counter[str]:
        found = Counter(kind for kind, _ in self._found(sensor_id))
        found[CONTRIBUTIONS] = sum(1 for _ in _contribution_keys(self._schema, self._read, sensor_id))
        return found

    def remove(self, counted: Mapping[str, Counter[str]], writer: "Rewriter") -> None:
        """Removes every row of the sensors, whose rows have been counted."""
        with progress_bar() as progress:
            task = progress.add_task("removing rows", total=sum(map(Counter.total, counted.values())))
            keys = (key for sensor_id in counted for _, key in self._found(sensor_id))
            while batch := list(islice(keys, _BATCH)):
                writer.delete_rows(batch)
                progress.advance(task, len(batch))
            if self._schema.tiers:
                cells = CellSelection(tuple(tier.family for tier in self._schema.tiers), versions=1)
                writer.add(without_sensors(list(self._read(RowSelection(notes_range(), cells))), counted))
            # After the aggregate rows: contributions are what these tell.
            contributions = {each: list(_contribution_keys(self._schema, self._read, each)) for each in counted}
            for number in _remove_contributions(self._schema, self._read, writer, contributions):
                progress.advance(task, number)

    def report(self) -> None:
        """Names the rows that were left because the schema never writes them."""
        report_foreign_rows(self._foreign.messages.values(), self._foreign.count, "left in the table")

    def _found(self, sensor_id: str) -> Iterator[tuple[str, bytes]]:
        return rows_of_sensor(self._schema, self._read, sensor_id, self._foreign.add)


def _contribution_keys(schema: TableSchema, read: ReadRows, sensor_id: str) -> Iterator[bytes]:
    """Yields the key of each row that tells what a sensor contributes to roll-ups, also of former tiers.

    Without roll-ups in the schema, the number of shards is not known: the server searches them all.
    """
    shard = b"%d#" % group_of(sensor_id.encode(), schema.shards_of_rollups) if schema.rollups else b""
    cells = CellSelection((FAMILY,), qualifiers=(sensor_id.encode(),), versions=1)
    rest = prefix_range(f"{MEMBERS}#".encode())
    while row := next(read(RowSelection(rest, _KEYS, page_rows=1)), None):
        label = row.key.split(b"#")[1]
        of_label = b"%b#%b#" % (MEMBERS.encode(), label)
        rest = rest._replace(start=prefix_range(of_label).end)
        for found in read(RowSelection(prefix_range(of_label + shard), cells)):
            yield found.key


def _remove_contributions(
    schema: TableSchema, read: ReadRows, writer: "Rewriter", sensors: Mapping[str, Collection[bytes]]
) -> Iterator[int]:
    """Removes the contributions of sensors that have no aggregate rows any more. Yields how many, in batches.

    The rows of groups are merged again before the cells of sensors are deleted: after an interruption, the next run
    finds them again. ``sensors`` has the keys of the rows that contain the contributions, by sensor.
    """
    settling = RollupSettling(GroupRules(schema), read, writer.write, less=True)
    by_key: dict[bytes, list[str]] = defaultdict(list)
    for sensor_id, keys in sensors.items():
        for key in keys:
            by_key[key].append(sensor_id)
    rest = iter(sorted(by_key))
    while some := list(islice(rest, _TOGETHER)):
        windows = {of: by_key[key] for key in some if (of := _shard_window(schema, key)) is not None}
        settling.settle(windows)
        settling.forgotten(windows)
        for key in some:
            if _shard_window(schema, key) is None:
                for sensor_id in by_key[key]:
                    writer.delete_column([key], FAMILY, sensor_id.encode())
        yield sum(len(by_key[key]) for key in some)


def _shard_window(schema: TableSchema, key: bytes) -> ShardWindow | None:
    """Returns the window that a row of members is of; None for one of a tier that the schema no longer has."""
    for index, tier in enumerate(schema.tiers):
        try:
            shard, start_us = parse_members_key(tier.window, key)
        except ValueError:
            continue
        return ShardWindow(index, start_us, shard)
    return None


def _print(
    found: dict[str, Counter[str]], verb: str, *, as_json: bool, left: dict[str, Counter[str]] | None = None
) -> None:
    for name, count in found.items():
        if as_json:
            fields = {kind.replace(" ", "_").replace("-", ""): count[kind] for kind in _COUNTED}
            print_json_line({"sensor_id": name, **fields, **({"left": left[name].total()} if left else {})})
        elif count.total():
            click.echo(f"{plain(name)}: {_shown(count)} {verb}" + ("; nothing is left" if _is_gone(name, left) else ""))
        else:
            click.echo(f"{plain(name)}: the table has no row of it")


def _is_gone(name: str, left: dict[str, Counter[str]] | None) -> bool:
    return left is not None and not left[name].total()


def _shown(count: Counter[str]) -> str:
    return ", ".join(f"{count[kind]:,} {_named(kind, count[kind])}" for kind in _COUNTED if count[kind])


def _named(kind: str, number: int) -> str:
    if number != 1:
        return kind
    return kind.replace("rows", "row").replace("windows", "window").replace("contributions", "contribution")
