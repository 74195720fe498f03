"""``--format``: prints records as CSV, Parquet or Arrow; the command itself prints a table or lines of JSON."""

import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.console import print_json_line
from pipeline.cli.options import Command, format_option
from pipeline.core.notation.text import json_line, plain
from pipeline.formats.tabular import write_arrow, write_csv, write_parquet

if TYPE_CHECKING:
    import pyarrow


class Output(StrEnum):
    """The format in which records are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


def output_option(command: Command) -> Command:
    """Adds ``--format``; passes ``output``, an Output, to the command."""

    @format_option(*(each.value for each in Output))
    @functools.wraps(command)
    def with_output(*args: Any, output: str, **kwargs: Any) -> Any:
        if output in (Output.PARQUET, Output.ARROW) and on_terminal() and not kwargs.get("out"):
            raise click.UsageError(
                f"{output.title()} is not text: redirect standard output to a file, as in > readings.{output}"
            )
        return command(*args, output=Output(output), **kwargs)

    return with_output


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def print_arrow(
    table: "pyarrow.RecordBatchReader", output: Output, *, delimiter: str = ",", decimal: str = "."
) -> None:
    """Prints a table as CSV, Parquet or Arrow.

    CSV is UTF-8, except that a terminal gets unprintable characters escaped. :func:`pipeline.formats.tabular.write_csv`
    has the other arguments.
    """
    sys.stdout.flush()
    if output == Output.PARQUET:
        write_parquet(table, sys.stdout.buffer)
    elif output == Output.ARROW:
        write_arrow(table, sys.stdout.buffer)
    else:
        if not on_terminal() and isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict")  # what readers of such files expect
        file = _Terminal() if on_terminal() else sys.stdout
        write_csv(table, file, delimiter=delimiter, decimal=decimal)


def print_flat(records: Iterable[Mapping[str, Any]], columns: Sequence[str], output: Output) -> None:
    """Prints JSON objects in any format but a table. In all but JSON, nested values become JSON text."""
    if output == Output.JSON:
        for record in records:
            print_json_line(dict(record))
        return
    import pyarrow  # slow to import

    listed = list(records)
    table = pyarrow.table({name: [_flat(record[name]) for record in listed] for name in columns})
    print_arrow(table.to_reader(), output)


def _flat(value: Any) -> Any:
    return json_line(value) if isinstance(value, list | dict) else value


class _Terminal:
    def write(self, text: str) -> None:
        sys.stdout.write(plain(text.removesuffix("\n")) + "\n")
