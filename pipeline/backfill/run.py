"""Writes readings from files to a table, as if they had been streamed, in a batch job.

    files ─ ReadFiles ─ ProcessMessages ─ WriteRawRows ────── raw rows, newest readings
                                           └─ CompleteWindows ─ aggregate rows, windows to repair
                                              └─ CompleteLongerWindows ─ … for each longer tier
                                                 └─ SettleRollups ────── rows of roll-ups
    refused records ───────────────────────────────────────── dead letters

On Dataflow this is one job. On this machine :mod:`pipeline.backfill.here` runs the same steps without a runner.

The first steps are those of the streaming job. A window's aggregate is computed when its raw rows are in the table,
from the files' readings and these rows. It is never added to a stored one, so running the job again changes nothing.
"""

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

import apache_beam as beam
import google.auth
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.gcsio import create_storage_client
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms.combiners import Count, Top

from pipeline.backfill import here
from pipeline.backfill.done import Done
from pipeline.backfill.files import FILE, READ, ReadFiles, check_file, find_files, identity, is_pattern
from pipeline.backfill.gather import CountRepeated, GatherFn, GatherSpans, Repeated, kind_of_batch
from pipeline.backfill.request import MAX_FILES, MAX_REPORTED, Backfill, BackfillResult, RecordNote, note_of
from pipeline.backfill.survey import NOTHING, Survey, SurveyEvents, trials_of_events
from pipeline.backfill.transforms import (
    CompleteLongerWindows,
    CompleteWindows,
    CountExpired,
    ListWindows,
)
from pipeline.cloud.connection.errors import ServerProblem, explained
from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.message_types import MessageTypes
from pipeline.core.events.message import Message
from pipeline.core.windows import sources
from pipeline.formats.files import Maker
from pipeline.formats.lines import UnreadableFile
from pipeline.formats.mapped import MappedMaker
from pipeline.job import bounded
from pipeline.job.flag_values import BadFlag
from pipeline.job.settings import runs_here
from pipeline.transforms.process import DecodeMessages, ProcessMessages
from pipeline.transforms.settle_rollups import SettleRollups
from pipeline.transforms.write import WriteRawRows, WriteRows

_MOST_SHOWN = 3

_GCS = "gs://"
_TIMEOUT_S = 10.0
_WRITE_LETTERS = "WriteDeadLetters"
_REFUSED, _REMARK, _SURVEY, _REPEATED, _OF_FILES = "refused", "remark", "survey", "repeated", "files"


def find_inputs(
    patterns: Sequence[str], dead_letters: str | None, maker: Maker, options: PipelineOptions, *, force: bool = False
) -> dict[str, int]:
    """Returns the files that the patterns match, with their sizes in bytes. Checks that one of them can be read.

    Args:
        patterns: paths and globs, local or in buckets.
        dead_letters: the file for refused records, if any.
        maker: the maker, with the names of the columns or the mappings.
        options: Beam's options.
        force: whether the file for refused records may exist; :func:`load` replaces it.

    Raises:
        BadFlag: a pattern matches no file, a Dataflow job gets a local path, or the file for refused records exists.
        ServerProblem: no file can be read, or a bucket can't be reached.
    """
    places = [*patterns, *([dead_letters] if dead_letters else [])]
    if foreign := [place for place in places if "://" in place and not place.startswith(_GCS)]:
        raise BadFlag(f"{foreign[0]}: files are local paths, without file://, or objects in a bucket, gs://…")
    if not runs_here(options):
        for place in places:
            if not place.startswith(_GCS):
                raise BadFlag(
                    f"{place} is a local file, and the job runs on Dataflow; use one in a bucket, like gs://…"
                )
    FileSystems.set_options(options)
    _check_buckets(places, options)
    try:
        files = find_files(patterns)
    except FileNotFoundError as problem:
        raise BadFlag(str(problem)) from problem
    if dead_letters:
        _check_output(dead_letters, files, force=force)
    problems = list[str]()
    for path in files:
        try:
            check_file(path, maker)
        except UnreadableFile as problem:
            problems.append(f"{path}: {problem}")
    if len(problems) == len(files):  # otherwise the job reports them, and reads the others
        raise ServerProblem(problems[0])
    return files


def count(backfill: Backfill) -> BackfillResult:
    """Counts the events and the expired ones among them. Reads and decodes everything, and writes nothing."""
    if runs_here(backfill.options()):
        return here.count(backfill)
    return _run(backfill, lambda pipeline, notes: _count(pipeline, backfill, notes))


def survey(backfill: Backfill) -> BackfillResult:
    """Counts the events as :func:`count` does, and surveys what they contain."""
    if runs_here(backfill.options()):
        return here.count(backfill, surveys=True)
    return _run(backfill, lambda pipeline, notes: _survey(pipeline, backfill, notes))


def first_trials(backfill: Backfill, trials: Trials) -> list[tuple[str, Message, Trial]]:
    """Returns the first records of the first file that become events: where each is, its message, and its events."""
    latest_us = time.time_ns() // 1000 + backfill.max_future // timedelta(microseconds=1)
    with suppress(UnreadableFile):  # the job reports it
        return list(islice(trials_of_events(backfill.paths[0], backfill.maker, trials, latest_us), _MOST_SHOWN))
    return []


def load(backfill: Backfill, *, restart: bool = False) -> BackfillResult:
    """Writes the rows of all events.

    Args:
        backfill: the backfill.
        restart: whether to begin anew after an interruption.
    """
    if runs_here(backfill.options()):
        with closing(Done(backfill.identity)) as done:
            if restart:
                done.forget()
            return here.load(backfill, done)
    if backfill.dead_letters and FileSystems.exists(backfill.dead_letters):
        FileSystems.delete([backfill.dead_letters])  # Beam would do it, with a warning
    return _run(backfill, lambda pipeline, notes: _load(pipeline, backfill, notes))


def _count(pipeline: beam.Pipeline, backfill: Backfill, notes: str) -> None:
    events, told = _read(pipeline, backfill)
    _ = told | "Note" >> _Note(notes)
    _ = events | "CountExpired" >> CountExpired(backfill.expiry)


def _survey(pipeline: beam.Pipeline, backfill: Backfill, notes: str) -> None:
    events, told = _read(pipeline, backfill)
    surveys = events | "SurveyEvents" >> SurveyEvents() | "TellSurvey" >> beam.Map(lambda found: (_SURVEY, found))
    schema = backfill.target.schema
    spans = events | "Gather" >> beam.ParDo(GatherFn(schema)) | "GatherSpans" >> GatherSpans(schema)
    repeated = _told_repeated(spans | "CountRepeated" >> CountRepeated())
    _ = (told, surveys, repeated) | "AllTold" >> beam.Flatten() | "Note" >> _Note(notes)
    _ = events | "CountExpired" >> CountExpired(backfill.expiry)


def _load(pipeline: beam.Pipeline, backfill: Backfill, notes: str) -> None:
    name, schema = backfill.target.name, backfill.target.schema
    table, kind = (name, schema, backfill.target.effective_retention), kind_of_batch(schema)
    read = _messages(pipeline, backfill)
    process = ProcessMessages(
        [schema], max_future=backfill.max_future, types=read.types, kinds=[kind], expiries=[backfill.expiry]
    )
    processed = read.messages | "ProcessMessages" >> process
    written = processed.raw[0] | "WriteRawRows" >> WriteRawRows(name, schema, bulk=True, kind=kind)
    letters = (read.refused, processed.dead_letters, written.dead_letters)
    refused = letters | "Refused" >> beam.Flatten()
    spans = written.readings | "GatherSpans" >> GatherSpans(schema)
    repeated: PCollection | None = None
    tiers, windows, listed, rolled_up = schema.tiers, list[PCollection](), [], []
    of_job = backfill.allowed_lateness, backfill.late_firing
    for tier, source in zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True):
        if source < 0:
            whole = CompleteWindows(table, *of_job, backfill.max_future)
            completed = spans | f"CompleteWindows[{tier.window.text}]" >> whole
        else:
            longer = CompleteLongerWindows(table, tier)
            completed = windows[source] | f"CompleteWindows[{tier.window.text}]" >> longer
        windows.append(completed.windows)
        repeated = completed.repeated or repeated
        rolled_up.append(completed.rolled_up)
        listed.append(completed.listed | f"ListWindows[{tier.window.text}]" >> ListWindows(schema))
    if schema.rollups:
        _ = rolled_up | "RolledUp" >> beam.Flatten() | "SettleRollups" >> SettleRollups(name, schema)
    if repeated is None:  # a table without tiers
        repeated = spans | "CountRepeated" >> CountRepeated()
    _ = (_told(refused, read.remarks), _told_repeated(repeated)) | "AllTold" >> beam.Flatten() | "Note" >> _Note(notes)
    for index, rows in enumerate(listed):
        _ = rows | f"WriteList{index or ''}" >> WriteRows(name)
    if backfill.dead_letters:
        lines = refused | "ToLine" >> beam.Map(backfill.as_line)
        _ = lines | _WRITE_LETTERS >> _to_one_file(backfill.dead_letters)


class _Messages(NamedTuple):
    """The messages of files.

    Attributes:
        messages: ``PubsubMessage`` elements.
        refused: ``Message`` elements that are dead letters.
        remarks: ``(file, line, text)`` of warnings.
        types: the message types; None for the built-in one.
    """

    messages: PCollection
    refused: PCollection
    remarks: PCollection
    types: MessageTypes | None


def _messages(pipeline: beam.Pipeline, backfill: Backfill) -> _Messages:
    read = pipeline | READ >> ReadFiles(backfill.paths, backfill.maker)
    messages = read.messages
    if not runs_here(pipeline.options):  # one worker reads a large file; the others share the rest of the work
        messages = messages | "SpreadMessages" >> beam.Reshuffle()
    types = backfill.maker.types if isinstance(backfill.maker, MappedMaker) else None
    return _Messages(messages, read.refused, read.remarks, types)


def _read(pipeline: beam.Pipeline, backfill: Backfill) -> tuple[PCollection, PCollection]:
    """Returns ``Event`` elements, and the first refusals and remarks."""
    read = _messages(pipeline, backfill)
    decode = DecodeMessages(backfill.max_future, [backfill.target.schema], types=read.types)
    decoded = read.messages | "DecodeMessages" >> decode
    refused = (read.refused, decoded.dead_letters) | "Refused" >> beam.Flatten()
    return decoded.events, _told(refused, read.remarks)


def _told(refused: PCollection, remarks: PCollection) -> PCollection:
    """Returns the first refusals and remarks, and the files with most refused records."""
    told = (
        refused | "TellRefused" >> beam.Map(lambda letter: (_REFUSED, tuple(note_of(letter)))),
        remarks | "TellRemarks" >> beam.Map(lambda remark: (_REMARK, tuple(remark))),
    )
    first = told | "Told" >> beam.Flatten() | "First" >> Top.SmallestPerKey(MAX_REPORTED)
    of_files = (
        refused
        | "OfFile" >> beam.Map(lambda letter: letter.attributes.get(FILE, ""))
        | "Count" >> Count.PerElement()
        | "TellFiles" >> beam.Map(lambda counted: (_OF_FILES, counted))
        | "Most" >> Top.PerKey(MAX_FILES, key=lambda counted: counted[1])
    )
    return (first, of_files) | "FirstAndMost" >> beam.Flatten()


def _told_repeated(repeated: PCollection) -> PCollection:
    """Returns a note on what comes again in the files, from ``Repeated`` elements."""
    total = repeated | "TotalRepeated" >> beam.CombineGlobally(Repeated.total)
    return total | "TellRepeated" >> beam.Map(lambda found: (_REPEATED, found))


@dataclass(eq=False)
class _Note(beam.PTransform):
    """Writes ``(kind, note)`` elements to a file."""

    path: str

    def expand(self, notes: PCollection) -> PCollection:
        return notes | "ToLine" >> beam.Map(json.dumps) | "Write" >> _to_one_file(self.path)


def _to_one_file(path: str) -> WriteToText:
    return WriteToText(path, num_shards=1, shard_name_template="")


def _run(backfill: Backfill, build: Callable[[beam.Pipeline, str], None]) -> BackfillResult:
    options = backfill.options()
    with _folder(options) as folder:
        path = f"{folder}/notes"
        try:
            totals = bounded.run(options, lambda pipeline: build(pipeline, path), [backfill.target.schema])
        except ServerProblem as problem:
            # The error of a failed write does not name the file, but Beam names the step.
            if backfill.dead_letters and f"while running '{_WRITE_LETTERS}/" in str(problem.__cause__):
                raise ServerProblem(f"{backfill.dead_letters}: {problem}") from problem
            raise
        with FileSystems.open(path) as file:
            notes = dict(map(json.loads, file.read().splitlines()))
    refused, remarks = (sorted(RecordNote(*each) for each in notes.get(kind, [])) for kind in (_REFUSED, _REMARK))
    survey, repeated = Survey.of_json(notes.get(_SURVEY, NOTHING)), Repeated.of_json(notes.get(_REPEATED, Repeated()))
    of_files = dict(sorted(notes.get(_OF_FILES, [])))
    return BackfillResult(totals, refused, remarks, survey, repeated, of_files)


@contextmanager
def _folder(options: PipelineOptions) -> Iterator[str]:
    """Returns a temporary folder for a job's notes: local, or in the job's bucket."""
    if runs_here(options):
        folder = tempfile.mkdtemp(prefix="tidetable-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    folder = f"{options.view_as(GoogleCloudOptions).temp_location.rstrip('/')}/notes-{secrets.token_hex(8)}"
    try:
        yield folder
    finally:
        with suppress(BeamIOError, OSError):  # a failed job wrote no file
            FileSystems.delete([f"{folder}/notes"])


def _check_output(path: str, inputs: Iterable[str], *, force: bool) -> None:
    if identity(path) in map(identity, inputs):
        raise BadFlag(f"{path} is one of the input files, and the refused records would replace it")
    if path.endswith("/"):
        raise BadFlag(f"{path} is the path of a folder; --dead-letters takes a file")
    # Beam deletes the file that its output replaces, and would read such a path as a glob.
    if is_pattern(path):
        raise BadFlag(f"{path}: an output path can't contain *, ? or [, the characters of globs")
    if not force and FileSystems.exists(path):
        raise BadFlag(f"{path} exists; set --force to replace it")


def _check_buckets(places: Sequence[str], options: PipelineOptions) -> None:
    """Checks the credentials and the buckets. Beam itself would retry for minutes, with a traceback each time."""
    no_auth = options.view_as(GoogleCloudOptions).no_auth
    for bucket in sorted({place.removeprefix(_GCS).partition("/")[0] for place in places if place.startswith(_GCS)}):
        with explained(f"bucket gs://{bucket}"):
            if not no_auth:
                google.auth.default()
            client = create_storage_client(options, not no_auth)
            next(iter(client.list_blobs(bucket, max_results=1, timeout=_TIMEOUT_S, retry=None)), None)
