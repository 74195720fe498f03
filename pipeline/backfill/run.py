"""Files of readings into a table, as if they had been streamed: a job that ends. Repeated, it changes nothing.

    files ─ ReadFiles ─ DecodeMessages ─┬─ FormatRawRows ─ WriteRawRows ──── raw rows
                                        │                       │ when all of them are there
                                        └─ CompleteWindows ─────┴─────────── aggregate rows, windows for a repair
                                           └─ CompleteLongerWindows ──────── … and so on
    what is refused on the way ───────────────────────────────────────────── dead letters

A window's aggregate is computed of the files' events and of the raw rows that the table has of it, and replaces what
was there: nothing is added to it, so that doing the same again comes to the same.
"""

import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import apache_beam as beam
import google.auth
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.gcsio import create_storage_client
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.combiners import Top

from pipeline.backfill.files import (
    FILE,
    LINE,
    METER,
    ReadFiles,
    check_file,
    find_files,
    identity,
    is_metered,
    is_pattern,
)
from pipeline.backfill.transforms import (
    CompleteLongerWindows,
    CompleteWindows,
    CountExpired,
)
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.core.dead_letters import DETAIL, REASON, STEP
from pipeline.core.messages import Message
from pipeline.core.schema.expiry import Expiry
from pipeline.formats.files import EventMaker, UnreadableFile
from pipeline.job import bounded
from pipeline.job.settings import BadFlag, Target, runs_here
from pipeline.transforms.decode import DecodeMessages
from pipeline.transforms.late import ListWindows
from pipeline.transforms.rows import FormatRawRows
from pipeline.transforms.write import WriteRows

MOST_TOLD = 20

_READ = "ReadFiles"
_GCS = "gs://"
_TIMEOUT_S = 10.0
_REFUSED, _REMARK = "refused", "remark"


class RecordNote(NamedTuple):
    """What a person should know of a record, or of a whole file, whose line is 0."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Backfill:
    """What is to be done.

    Args:
        paths: of the files.
        maker: makes events of their records.
        target: the table.
        expiry: how long it keeps readings.
        max_future: how far ahead of now an event may be.
        allowed_lateness: of the jobs that write the table.
        late_firing: of these jobs.
        dead_letters: the file that what is refused goes to; None for none.
        as_line: a dead letter, as it stands there.
        beam_flags: Beam's own.
    """

    paths: Sequence[str]
    maker: EventMaker
    target: Target
    expiry: Expiry
    max_future: timedelta
    allowed_lateness: timedelta
    late_firing: timedelta
    dead_letters: str | None
    as_line: Callable[[Message], str]
    beam_flags: Sequence[str]

    def options(self) -> PipelineOptions:
        """Beam's, for one job."""
        return bounded.beam_options(self.beam_flags, self.target.name.project)


class Outcome(NamedTuple):
    """What came of a job: the totals of its counters, and the first records that were refused, or are remarkable."""

    totals: dict[str, int]
    refused: list[RecordNote]
    remarks: list[RecordNote]


def find_inputs(
    patterns: Sequence[str], dead_letters: str | None, maker: EventMaker, options: PipelineOptions
) -> dict[str, int]:
    """The files that the patterns name and their sizes; each begins as one of its format does.

    Args:
        patterns: paths and globs, local or of buckets.
        dead_letters: where what is refused would go.
        maker: knows the columns.
        options: Beam's.

    Raises:
        BadFlag: a pattern that names no file, or a local one for a job that runs elsewhere.
        ServerProblem: a file that can't be read, or a bucket that is out of reach.
    """
    places = [*patterns, *([dead_letters] if dead_letters else [])]
    if foreign := [place for place in places if "://" in place and not place.startswith(_GCS)]:
        raise BadFlag(f"{foreign[0]}: files are local paths, without file://, or objects in a bucket, gs://…")
    if not runs_here(options):
        for place in places:
            if not place.startswith(_GCS):
                raise BadFlag(
                    f"{place} is a file here, and the job runs on Dataflow; take one in a bucket, like gs://…"
                )
    FileSystems.set_options(options)
    _check_buckets(places, options)
    try:
        files = find_files(patterns)
    except FileNotFoundError as problem:
        raise BadFlag(str(problem)) from problem
    if dead_letters:
        _check_output(dead_letters, files)
    for path in files:
        try:
            check_file(path, maker)
        except UnreadableFile as problem:
            raise ServerProblem(f"{path}: {problem}") from problem
    return files


def bytes_of(files: Mapping[str, int], options: PipelineOptions) -> int:
    """What :func:`bytes_read` will come to; 0 where it tells nothing, as of a job that runs elsewhere."""
    return sum(size for path, size in files.items() if is_metered(path)) if runs_here(options) else 0


def bytes_read() -> int:
    """How much of the files a job that runs here has read by now."""
    return METER.bytes_read


def count(backfill: Backfill) -> Outcome:
    """Reads and decodes everything, and writes nothing: how many events there are, and how many of them are expired."""
    return _run(backfill, lambda begin, told: _count(begin, backfill, told))


def load(backfill: Backfill) -> Outcome:
    """Writes the rows."""
    return _run(backfill, lambda begin, told: _load(begin, backfill, told))


def _count(pipeline: beam.Pipeline, backfill: Backfill, told: str) -> None:
    events, _ = _read(pipeline, backfill, told)
    _ = events | "CountExpired" >> CountExpired(backfill.expiry)


def _load(pipeline: beam.Pipeline, backfill: Backfill, told: str) -> None:
    target = backfill.target
    table = target.name, target.schema, target.effective_retention
    write = WriteRows(target.name.project, target.name.instance, target.name.table)
    events, refused = _read(pipeline, backfill, told)
    _ = events | "CountExpired" >> CountExpired(backfill.expiry)
    written = events | "FormatRawRows" >> FormatRawRows(target.schema) | "WriteRawRows" >> write
    windows, listed, before = events, [], None
    for tier in target.schema.tiers:
        if before is None:
            step = CompleteWindows(table, written, backfill.allowed_lateness, backfill.late_firing)
        else:
            step = CompleteLongerWindows(table, (before, tier))
        windows, of_tier = windows | f"CompleteWindows[{tier.window.text}]" >> step
        listed.append(of_tier | f"ListWindows[{tier.window.text}]" >> ListWindows(target.schema))
        before = tier
    for index, rows in enumerate(listed):
        _ = rows | f"WriteList{index or ''}" >> write
    if backfill.dead_letters:
        lines = refused | "ToLine" >> beam.Map(backfill.as_line)
        _ = lines | "WriteDeadLetters" >> _to_one_file(backfill.dead_letters)


def _read(pipeline: beam.Pipeline, backfill: Backfill, told: str) -> tuple[PCollection, PCollection]:
    """``Event`` elements, and ``Message`` elements that are dead letters; the first of these are told in a file."""
    read = pipeline | _READ >> ReadFiles(backfill.paths, backfill.maker)
    messages = read.messages
    if not runs_here(pipeline.options):  # a large file is read by one worker; what follows is for all of them
        messages = messages | "SpreadMessages" >> beam.Reshuffle()
    decoded = messages | "DecodeMessages" >> DecodeMessages(backfill.max_future, [backfill.target.schema])
    refused = (read.refused, decoded.dead_letters) | "Refused" >> beam.Flatten()
    to_tell = (
        refused | "TellRefused" >> beam.Map(_told_of),
        read.remarks | "TellRemarks" >> beam.Map(lambda remark: (_REMARK, tuple(remark))),
    )
    _ = (
        to_tell
        | "Told" >> beam.Flatten()
        | "First" >> Top.SmallestPerKey(MOST_TOLD)
        | "ToldToLine" >> beam.Map(json.dumps)
        | "WriteTold" >> _to_one_file(told)
    )
    return decoded.events, refused


def _to_one_file(path: str) -> WriteToText:
    return WriteToText(path, num_shards=1, shard_name_template="")


def _told_of(letter: Message) -> tuple[str, tuple[str, int, str]]:
    declared = letter.attributes
    # What is no event at all has no reason of the contract's own.
    text = declared[DETAIL] if declared[STEP] == _READ else f"{declared[REASON]}: {declared[DETAIL]}"
    return _REFUSED, (declared.get(FILE, ""), int(declared.get(LINE, 0)), text)


def _run(backfill: Backfill, build: Callable[[beam.Pipeline, str], None]) -> Outcome:
    options = backfill.options()
    METER.clear()
    with _folder(options) as folder:
        path = f"{folder}/told"
        totals = bounded.run(options, lambda pipeline: build(pipeline, path), [backfill.target.schema])
        with FileSystems.open(path) as file:
            told = dict(map(json.loads, file.read().splitlines()))
    refused, remarks = (sorted(RecordNote(*each) for each in told.get(kind, [])) for kind in (_REFUSED, _REMARK))
    return Outcome(totals, refused, remarks)


@contextmanager
def _folder(options: PipelineOptions) -> Iterator[str]:
    """Where a job leaves what is told of it: here, or in the job's bucket."""
    if runs_here(options):
        folder = tempfile.mkdtemp(prefix="tidetable-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = f"{options.view_as(GoogleCloudOptions).temp_location.rstrip('/')}/told-{secrets.token_hex(8)}"
    try:
        yield folder
    finally:
        with suppress(BeamIOError, OSError):  # a job that failed has left nothing there
            FileSystems.delete([f"{folder}/told"])


def _check_output(path: str, inputs: Iterable[str]) -> None:
    if identity(path) in map(identity, inputs):
        raise BadFlag(f"{path} is one of the files to read, and what is refused would replace it")
    if path.endswith("/"):
        raise BadFlag(f"{path} is a folder's name; --dead-letters takes that of a file")
    # Beam deletes what its output replaces, and would take such a name for a pattern there.
    if is_pattern(path):
        raise BadFlag(f"{path}: a file that is written can't have *, ? or [ in its path, which are for patterns")


def _check_buckets(places: Sequence[str], options: PipelineOptions) -> None:
    """Asks for credentials and for the buckets: Beam itself would try for minutes, with a traceback each time."""
    no_auth = options.view_as(GoogleCloudOptions).no_auth
    for bucket in sorted({place.removeprefix(_GCS).partition("/")[0] for place in places if place.startswith(_GCS)}):
        with explained(f"bucket gs://{bucket}"):
            if not no_auth:
                google.auth.default()
            client = create_storage_client(options, not no_auth)
            next(iter(client.list_blobs(bucket, max_results=1, timeout=_TIMEOUT_S, retry=None)), None)
