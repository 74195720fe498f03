"""Repair reports: one line of JSON for each wrong or untouched window and for each foreign row."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.textio import WriteToText
from apache_beam.pvalue import PCollection

from pipeline.cloud.connection.errors import ServerError
from pipeline.core.completion.audit import COLLECTED_ROWS, FOREIGN, OPEN, UNSURE, Finding, Untouched
from pipeline.core.notation.text import json_line
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.windows import Window

AROUND = "contains wrong windows"
LEFT = (OPEN, COLLECTED_ROWS, UNSURE)
"""Why a longer window that contains wrong ones stays as it is."""


def line_of(found: Finding | Untouched) -> str:
    """Returns the report line of a wrong or untouched window."""
    return json_line(found.record())


def line_of_longer(found: Finding | Untouched) -> str:
    """Returns the report line of a longer window around wrong ones."""
    return json_line(found.record() | ({"problem": AROUND} if isinstance(found, Finding) else {}))


def is_around(record: Mapping[str, Any]) -> bool:
    """Returns whether a record tells of a longer window around wrong ones, which was not audited itself."""
    return record["problem"] == AROUND or is_left(record)


def is_left(record: Mapping[str, Any]) -> bool:
    """Returns whether a record tells of such a window that stays as it is."""
    return record["problem"] in LEFT


def line_of_foreign(key: bytes, detail: str) -> str:
    """Returns the report line of a foreign row; ``detail`` describes the problem."""
    return json_line({"row": shown_row(key), "problem": "foreign row", "detail": detail})


def shown_row(key: bytes) -> str:
    """Returns a foreign row's key as text."""
    return key.decode(errors="backslashreplace")


@dataclass(eq=False)
class WriteReport(beam.PTransform):
    """Writes lines to the files of a report. Has no output.

    Beam's own transform splits work among workers and renames their files, which takes six stages of a pipeline. A
    local job writes its one file in one stage.

    Args:
        prefix: the start of the files' paths.
        here: whether the job runs in this process.
    """

    prefix: str
    here: bool

    def expand(self, lines: PCollection) -> PCollection:
        if not self.here:
            return lines | WriteToText(self.prefix, ".ndjson")
        write_lines(self.prefix, ())  # a report without lines is a file too
        return lines | beam.WithKeys(None) | beam.GroupByKey() | beam.Map(_write_gathered, self.prefix)


def _write_gathered(gathered: tuple[None, Iterable[str]], prefix: str) -> None:
    write_lines(prefix, gathered[1])


def write_lines(prefix: str, lines: Iterable[str]) -> None:
    """Writes lines to the one file of a report, given the start of its path."""
    with FileSystems.create(f"{prefix}-00000-of-00001.ndjson", "text/plain") as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def read_findings(prefix: str, *, in_order: bool) -> Iterator[dict[str, Any]]:
    """Reads the windows that a pipeline reported; ``in_order`` sorts them by sensor and time, in memory."""
    windows = (record for record in _records(prefix) if "row" not in record)
    yield from sorted(windows, key=_in_order) if in_order else windows


def read_foreign(prefixes: Iterable[str]) -> tuple[set[tuple[str, AggregateKey]], dict[str, str]]:
    """Reads the windows left untouched because of foreign rows, with their lengths, and those rows' details by key."""
    untouched: set[tuple[str, AggregateKey]] = set()
    foreign: dict[str, str] = {}
    for record in chain.from_iterable(map(_records, prefixes)):
        if "row" in record:
            foreign[record["row"]] = record["detail"]
        elif record["problem"] == FOREIGN:
            window = AggregateKey(record["sensor_id"], parse_time(record["start"]))
            untouched.add((record["window"], window))
    return untouched, foreign


def read_left(prefixes: Iterable[str], shortest: Window) -> set[AggregateKey]:
    """Reads which windows of the shortest tier are listed for longer windows that stay as they are."""
    return {
        AggregateKey(record["sensor_id"], shortest.start_of(parse_time(record["start"])))
        for record in chain.from_iterable(map(_records, prefixes))
        if is_left(record)
    }


def _records(prefix: str) -> Iterator[dict[str, Any]]:
    try:
        (found,) = FileSystems.match([f"{prefix}-[0-9]*"])  # its shards
        for file in found.metadata_list:
            yield from map(json.loads, _lines(file.path))
    except (BeamIOError, OSError) as error:
        raise ServerError(f"report {prefix}: {' '.join(str(error).split())[:300]}") from error


def _in_order(record: Mapping[str, Any]) -> tuple[str, int, str]:
    return record["sensor_id"], parse_time(record["start"]), record["window"]


def _lines(path: str) -> Iterator[bytes]:
    with FileSystems.open(path) as file:
        yield from file
