"""A requested backfill, and its result."""

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.backfill.files import FILE, LINE, READ
from pipeline.backfill.gather import Repeated
from pipeline.backfill.survey import Survey
from pipeline.core.events.dead_letter import DETAIL, REASON, STEP
from pipeline.core.events.message import Message
from pipeline.core.schema.retention import Expiry
from pipeline.formats.files import Maker
from pipeline.job import bounded
from pipeline.job.settings import Target

MAX_REPORTED = 20
"""The refusals and remarks that a result names."""
MAX_FILES = 1000
"""The files with refused records that a result names."""


class RecordNote(NamedTuple):
    """A refusal of a record, or a remark on it; line 0 stands for the whole file."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Backfill:
    """The requested backfill.

    Args:
        files: the files, with their sizes in bytes.
        maker: the maker of events, or of messages for mappings, from records.
        target: the table.
        expiry: the ages at which the table loses readings.
        max_future: the maximum time by which an event may be ahead of now.
        allowed_lateness: the allowed lateness of the jobs that write the table.
        late_firing: the late firing interval of these jobs.
        dead_letters: the file for refused records; None to drop them.
        as_line: the function that formats a dead letter as a line of that file.
        beam_flags: Beam's flags.
        inputs: the paths and globs that match the files.
        table_id: the id of the table, by which a table that was created anew is another one.
    """

    files: Mapping[str, int]
    maker: Maker
    target: Target
    expiry: Expiry
    max_future: timedelta
    allowed_lateness: timedelta
    late_firing: timedelta
    dead_letters: str | None
    as_line: Callable[[Message], str]
    beam_flags: Sequence[str]
    table_id: bytes = b""
    inputs: Sequence[str] = ()

    @property
    def paths(self) -> list[str]:
        """The paths of the files."""
        return list(self.files)

    @property
    def identity(self) -> list[bytes]:
        """Whatever must be the same for a later run to go on where this one was interrupted."""
        server, inputs = os.environ.get("BIGTABLE_EMULATOR_HOST", ""), self.inputs or self.files
        named = str(self.target.name), server, str(self.dead_letters), str(Path.cwd()), *inputs
        return [*map(os.fsencode, named), pickle.dumps(self.maker.identity), self.table_id]

    def options(self) -> PipelineOptions:
        """Returns Beam's options for one job."""
        return bounded.beam_options(self.beam_flags, self.target.name.project)


class BackfillResult(NamedTuple):
    """The result of a job.

    Attributes:
        totals: the totals of its counters.
        refused: the first refusals.
        remarks: the first remarks.
        survey: the contents of the files.
        repeated: the events and readings that come again.
        of_files: the number of refused records of each file that has some; of many files, those with most.
        processes: the number of processes on this machine; 0 for a job on Dataflow.
        done_before: the number of files that an interrupted run had done.
    """

    totals: dict[str, int]
    refused: list[RecordNote]
    remarks: list[RecordNote]
    survey: Survey
    repeated: Repeated
    of_files: dict[str, int]
    processes: int = 0
    done_before: int = 0


def note_of(letter: Message) -> RecordNote:
    """Returns the note on a dead letter."""
    attributes = letter.attributes
    # A record that is not an event has no reason in the contract.
    text = attributes[DETAIL] if attributes[STEP] == READ else f"{attributes[REASON]}: {attributes[DETAIL]}"
    return RecordNote(attributes.get(FILE, ""), int(attributes.get(LINE, 0)), text)
