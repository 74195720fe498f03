"""A requested backfill, and its outcome."""

import heapq
import os
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.core.decoding.file_names import FILE
from pipeline.core.decoding.message_types import MessageTypes
from pipeline.core.events.dead_letter import DETAIL, REASON, STEP
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import Reason
from pipeline.core.schema.retention import Expiry
from pipeline.formats.files import Maker
from pipeline.formats.mapped import MappedMaker
from pipeline.job import bounded
from pipeline.job.settings import Target

LINE = "line"
"""The attribute of a refused record's line or number, beside that of its file."""
READ = "ReadFiles"
"""The step that refuses records."""
MAX_FILES = 1000
"""The most files with refused records that a summary names."""
MAX_EXAMPLES = 3
"""The most lost readings that a summary names."""

_MAX_REPORTED = 20  # refusals, and remarks


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
    def types(self) -> MessageTypes | None:
        """The message types; None for the built-in one."""
        return self.maker.types if isinstance(self.maker, MappedMaker) else None

    @property
    def identity(self) -> list[bytes]:
        """Whatever must be the same for a later run to go on where this one was interrupted."""
        server, inputs = os.environ.get("BIGTABLE_EMULATOR_HOST", ""), self.inputs or self.files
        named = str(self.target.name), server, str(self.dead_letters), str(Path.cwd()), *inputs
        return [*map(os.fsencode, named), pickle.dumps(self.maker.identity), self.table_id]

    def options(self) -> PipelineOptions:
        """Returns Beam's options for one job."""
        return bounded.beam_options(self.beam_flags, self.target.name.project)


class RecordNote(NamedTuple):
    """A refusal of a record, or a remark on it; line 0 stands for the whole file."""

    file: str
    line: int
    text: str


class LostReading(NamedTuple):
    """A sensor's time and metric for which files have several values, of which the table keeps one."""

    time_us: int
    sensor_id: str
    metric: str
    values: tuple[float, float]  # two of these, the least and the greatest


class Repeated(NamedTuple):
    """What files repeat. Does not count events of metadata alone, and windows with too many metrics for a row."""

    events: int = 0  # that the table does not distinguish from another one
    readings: int = 0  # whose event, metric and value another reading has: nothing is lost with them
    lost: int = 0  # further values of an event and a metric
    examples: tuple[LostReading, ...] = ()  # the first lost readings

    @classmethod
    def total(cls, parts: Iterable["Repeated"]) -> "Repeated":
        """Returns the sums."""
        events, readings, lost, examples = zip(cls(), *parts, strict=True)
        return cls(sum(events), sum(readings), sum(lost), tuple(heapq.nsmallest(MAX_EXAMPLES, chain(*examples))))


class Metric(NamedTuple):
    """The readings of a metric: how many there are, the least and the greatest."""

    readings: int
    least: float
    greatest: float


class Survey(NamedTuple):
    """What events contain."""

    sensors: int = 0
    first_us: int = 0  # the earliest event time; 0 without events
    last_us: int = 0
    metrics: Mapping[str, Metric] = {}

    @classmethod
    def total(cls, surveys: Iterable["Survey"]) -> "Survey":
        """Returns the survey of all events. The surveys have no sensor in common."""
        sensors, times, metrics = 0, list[int](), dict[str, Metric]()
        for survey in surveys:
            sensors += survey.sensors
            times += (survey.first_us, survey.last_us) if survey.last_us else ()
            for name, metric in survey.metrics.items():
                count, least, greatest = metrics.get(name, metric._replace(readings=0))
                metrics[name] = Metric(
                    count + metric.readings, min(least, metric.least), max(greatest, metric.greatest)
                )
        return cls(sensors, min(times, default=0), max(times, default=0), dict(sorted(metrics.items())))


@dataclass
class Outcome:
    """What a backfill, or a part of it, has done.

    Attributes:
        totals: the values of counters by name.
        refused: the first refusals.
        remarks: the first remarks.
        repeated: the events and readings that files repeat.
        of_files: the number of refused records of each file that has some.
        survey: the survey of the events.
        groups: the groups of roll-ups that are due.
        processes: the number of processes on this machine; 0 for a job on Dataflow.
        done_before: the number of files that an interrupted run had done.
    """

    totals: Counter[str] = field(default_factory=Counter)
    refused: list[RecordNote] = field(default_factory=list)
    remarks: list[RecordNote] = field(default_factory=list)
    repeated: Repeated = field(default_factory=Repeated)
    of_files: Counter[str] = field(default_factory=Counter)
    survey: Survey = field(default_factory=Survey)
    groups: set[Any] = field(default_factory=set)
    processes: int = 0
    done_before: int = 0

    def refuse(self, letter: Message) -> None:
        """Notes a dead letter. One about a reading that its event lost is a remark: the event was kept."""
        attributes = letter.attributes
        # A record that is not an event has no reason in the contract.
        text = attributes[DETAIL] if attributes[STEP] == READ else f"{attributes[REASON]}: {attributes[DETAIL]}"
        file, line = attributes.get(FILE, ""), int(attributes.get(LINE, 0))
        if attributes[REASON] == Reason.READING_DROPPED:
            self.remark((file, line, attributes[DETAIL]))
            return
        self.of_files[file] += 1
        _keep_first(self.refused, RecordNote(file, line, text))

    def remark(self, remark: tuple[str, int, str]) -> None:
        """Notes a remark."""
        _keep_first(self.remarks, RecordNote(*remark))

    def add(self, other: "Outcome") -> None:
        """Adds another part."""
        self.totals.update(other.totals)
        self.refused = heapq.nsmallest(_MAX_REPORTED, [*self.refused, *other.refused])
        self.remarks = heapq.nsmallest(_MAX_REPORTED, [*self.remarks, *other.remarks])
        self.repeated = Repeated.total([self.repeated, other.repeated])
        self.of_files.update(other.of_files)
        self.survey = Survey.total([self.survey, other.survey])
        self.groups |= other.groups

    @classmethod
    def total(cls, parts: Iterable["Outcome"]) -> "Outcome":
        """Returns the outcome of all parts."""
        total = cls()
        for part in parts:
            total.add(part)
        return total

    def as_json(self) -> list[Any]:
        """Returns the outcome for a file; :meth:`of_json` reads it."""
        return [self.totals, self.refused, self.remarks, self.repeated, self.of_files, self.survey]

    @classmethod
    def of_json(cls, parts: Sequence[Any]) -> "Outcome":
        """Returns the outcome that was written as JSON."""
        totals, refused, remarks, (events, readings, lost, examples), of_files, survey = parts
        sensors, first_us, last_us, metrics = survey
        lost_readings = tuple(LostReading(us, sensor, metric, (*both,)) for us, sensor, metric, both in examples)
        return cls(
            Counter(totals),
            [RecordNote(*note) for note in refused],
            [RecordNote(*note) for note in remarks],
            Repeated(events, readings, lost, lost_readings),
            Counter(of_files),
            Survey(sensors, first_us, last_us, {name: Metric(*metric) for name, metric in metrics.items()}),
        )


def _keep_first(notes: list[RecordNote], note: RecordNote) -> None:
    """Adds a note if it may be among the first."""
    notes.append(note)
    if len(notes) > 2 * _MAX_REPORTED:
        notes[:] = heapq.nsmallest(_MAX_REPORTED, notes)
