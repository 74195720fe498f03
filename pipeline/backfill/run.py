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
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import apache_beam as beam
import google.auth
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.io.gcp.gcsio import create_storage_client
from apache_beam.io.textio import WriteToText
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.typehints import KV

from pipeline.backfill import here
from pipeline.backfill.files import ReadFiles, ReadRecords, check_file, find_files, identity, is_pattern, open_file
from pipeline.backfill.request import READ, Backfill, Outcome, RecordNote, Survey
from pipeline.backfill.transforms import (
    LISTED,
    REPEATED,
    ROLLED_UP,
    SENSORS,
    CompleteFn,
    CompleteLongerFn,
    CountExpiredFn,
    GatherFn,
    SurveyFn,
    gathered_spans,
    kind_of_batch,
    repeated_in,
    work_rows,
)
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.events.message import Message
from pipeline.core.rows.rows import EncodedRows
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows import Window, sources
from pipeline.formats.files import Maker, first_trials, records_of
from pipeline.formats.values import UnreadableFile
from pipeline.job import bounded
from pipeline.job.flags import BadFlag
from pipeline.job.settings import runs_here
from pipeline.transforms.process import DecodeMessages, ProcessMessages
from pipeline.transforms.settle_rollups import SettleRollups, WrittenWindow
from pipeline.transforms.tables import now_us
from pipeline.transforms.write import WriteRawRows, WriteRows

_MOST_SHOWN = 3  # records of a dry run
_MOST_TRIED = 1000  # records, to find these
_GCS = "gs://"
_TIMEOUT_S = 10.0
_WRITE_LETTERS = "WriteDeadLetters"
_SURVEYS, _WINDOWS = "surveys", "windows"
_Shorter = KV[tuple[str, int], tuple[int, WindowStats | None]]  # sensor and start of the longer window; a shorter one


def find_inputs(
    patterns: Sequence[str], dead_letters: str | None, maker: Maker, options: PipelineOptions, *, force: bool = False
) -> dict[str, int]:
    """Returns the files that the patterns match, with their sizes in bytes. Checks that one of them can be read.

    Raises:
        BadFlag: a pattern matches no file, a Dataflow job gets a local path, or the file for refused records exists.
        ServerError: no file can be read, or a bucket can't be reached.
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
        raise ServerError(problems[0])
    return files


def count(backfill: Backfill, *, surveys: bool = False) -> Outcome:
    """Counts the events and the expired ones among them, and may survey the events. Writes nothing."""
    if runs_here(backfill.options()):
        return here.count(backfill, surveys=surveys)
    return _run(backfill, partial(_count, backfill=backfill, surveys=surveys))


def trials_of_events(backfill: Backfill, trials: Trials) -> list[tuple[str, Message, Trial]]:
    """Returns the first records of the first file that become events: where each is, its message, and its events."""
    path, latest_us = next(iter(backfill.files)), now_us() + backfill.max_future // timedelta(microseconds=1)
    with (
        suppress(UnreadableFile),  # the job reports it
        closing(open_file(path)) as file,
        records_of(path, file, backfill.maker, sniff=True) as records,
    ):
        tried = first_trials(path, records, trials, _MOST_TRIED, latest_us)
        return list(islice((trial for trial in tried if trial[2].events), _MOST_SHOWN))
    return []


def load(backfill: Backfill, *, restart: bool = False) -> Outcome:
    """Writes the rows of all events."""
    if runs_here(backfill.options()):
        with closing(here.Done(backfill.identity)) as done:
            if restart:
                done.forget()
            return here.load(backfill, done)
    if backfill.dead_letters and FileSystems.exists(backfill.dead_letters):
        FileSystems.delete([backfill.dead_letters])  # Beam would do it, with a warning
    return _run(backfill, partial(_load, backfill=backfill))


def _count(pipeline: beam.Pipeline, backfill: Backfill, surveys: bool) -> PCollection:
    read = _read(pipeline, backfill)
    decode = DecodeMessages(backfill.max_future, [backfill.target.schema], types=backfill.types)
    decoded = read.messages | "DecodeMessages" >> decode
    events, surveyed = decoded.events, list[PCollection]()
    _ = events | "CountExpired" >> beam.ParDo(CountExpiredFn(backfill.expiry))
    if surveys:
        schema = backfill.target.schema
        found = events | "Survey" >> beam.ParDo(SurveyFn()).with_outputs(SENSORS, main=_SURVEYS)
        sensors = found[SENSORS] | "Distinct" >> beam.Distinct() | "One" >> beam.Map(lambda _: Survey(sensors=1))
        surveys_of = (found[_SURVEYS], sensors) | "Surveys" >> beam.Flatten()
        spans = gathered_spans(events | "Gather" >> beam.ParDo(GatherFn(schema)), schema)
        surveyed = [
            surveys_of | "NoteSurvey" >> beam.Map(lambda survey: Outcome(survey=survey)),
            spans | "NoteRepeated" >> beam.Map(lambda span: Outcome(repeated=repeated_in(span))),
        ]
    refused = (read.refused, decoded.dead_letters) | "Refused" >> beam.Flatten()
    return _noted(refused, read.remarks, *surveyed)


def _load(pipeline: beam.Pipeline, backfill: Backfill) -> PCollection:
    name, schema = backfill.target.name, backfill.target.schema
    table, kind = (name, schema, backfill.target.effective_retention), kind_of_batch(schema)
    read = _read(pipeline, backfill)
    process = ProcessMessages(
        [schema], max_future=backfill.max_future, types=backfill.types, kinds=[kind], expiries=[backfill.expiry]
    )
    processed = read.messages | "ProcessMessages" >> process
    written = processed.raw[0] | "WriteRawRows" >> WriteRawRows(name, schema, bulk=True, kind=kind)
    letters = (read.refused, processed.dead_letters, written.dead_letters)
    refused = letters | "Refused" >> beam.Flatten()
    spans = gathered_spans(written.readings, schema)
    repeated = list[PCollection]()
    tiers, windows, rolled_up = schema.tiers, list[PCollection](), list[PCollection]()
    of_job = backfill.allowed_lateness, backfill.late_firing, backfill.max_future
    for index, (tier, source) in enumerate(zip(tiers, sources(tuple(tier.window for tier in tiers)), strict=True)):
        text = tier.window.text
        if source < 0:
            gathered, complete = spans, beam.ParDo(CompleteFn(*table, tier, *of_job))
        else:
            by_longer = beam.Map(_by_longer, tier.window).with_output_types(_Shorter)
            gathered = windows[source] | f"ByLongerWindow[{text}]" >> by_longer
            gathered = gathered | f"GatherWindows[{text}]" >> beam.GroupByKey()
            complete = beam.ParDo(CompleteLongerFn(*table, tier))
        tags = LISTED, ROLLED_UP, REPEATED
        completed = gathered | f"CompleteWindows[{text}]" >> complete.with_outputs(*tags, main=_WINDOWS)
        completed[_WINDOWS].element_type = KV[str, tuple[int, WindowStats | None]]
        completed[ROLLED_UP].element_type = WrittenWindow
        windows.append(completed[_WINDOWS])
        rolled_up.append(completed[ROLLED_UP])
        repeated.append(completed[REPEATED])
        to_row = beam.Map(work_rows, schema).with_output_types(EncodedRows)
        listed = completed[LISTED] | f"ListWindows[{text}]" >> to_row
        _ = listed | f"WriteList{index or ''}" >> WriteRows(name)
    if schema.rollups:
        _ = rolled_up | "RolledUp" >> beam.Flatten() | "SettleRollups" >> SettleRollups(name, schema)
    if not tiers:
        repeated = [spans | "CountRepeated" >> beam.Map(repeated_in)]
    noted = (
        repeated
        | "Repeated" >> beam.Flatten()
        | "NoteRepeated" >> beam.Map(lambda repeated: Outcome(repeated=repeated))
    )
    if backfill.dead_letters:
        lines = refused | "ToLine" >> beam.Map(backfill.as_line)
        _ = lines | _WRITE_LETTERS >> _to_one_file(backfill.dead_letters)
    return _noted(refused, read.remarks, noted)


def _by_longer(element: tuple[str, tuple[int, Any]], longer: Window) -> tuple[tuple[str, int], tuple[int, Any]]:
    """Keys a shorter window by the longer one: Beam has no windows of calendars, and needs none."""
    sensor_id, shorter = element
    return (sensor_id, longer.start_of(shorter[0])), shorter


def _read(pipeline: beam.Pipeline, backfill: Backfill) -> ReadRecords:
    read: ReadRecords = pipeline | READ >> ReadFiles(backfill.files, backfill.maker)
    # One worker reads a large file; the others share the rest of the work.
    return read._replace(messages=read.messages | "SpreadMessages" >> beam.Reshuffle())


def _noted(refused: PCollection, remarks: PCollection, *parts: PCollection) -> PCollection:
    """Returns the outcome of a job without its counters."""

    def of_letter(letter: Message) -> Outcome:
        outcome = Outcome()
        outcome.refuse(letter)
        return outcome

    noted = (
        refused | "NoteRefused" >> beam.Map(of_letter),
        remarks | "NoteRemarks" >> beam.Map(lambda remark: Outcome(remarks=[RecordNote(*remark)])),
    )
    return (*noted, *parts) | "AllNoted" >> beam.Flatten() | "Total" >> beam.CombineGlobally(Outcome.total)


def _to_one_file(path: str) -> WriteToText:
    return WriteToText(path, num_shards=1, shard_name_template="")


def _run(backfill: Backfill, build: Callable[[beam.Pipeline], PCollection]) -> Outcome:
    """Runs a job that writes its outcome to a file in its temporary folder."""
    options = backfill.options()
    path = f"{options.view_as(GoogleCloudOptions).temp_location.rstrip('/')}/notes-{secrets.token_hex(8)}"

    def whole(pipeline: beam.Pipeline) -> None:
        _ = build(pipeline) | "ToJson" >> beam.Map(lambda outcome: json.dumps(outcome.as_json())) | _to_one_file(path)

    try:
        totals = bounded.run(options, whole, [backfill.target.schema])
        with FileSystems.open(path) as file:
            outcome = Outcome.of_json(json.loads(file.read()))
    except ServerError as problem:
        # The error of a failed write does not name the file, but Beam names the step.
        if backfill.dead_letters and f"while running '{_WRITE_LETTERS}/" in str(problem.__cause__):
            raise ServerError(f"{backfill.dead_letters}: {problem}") from problem
        raise
    finally:
        with suppress(BeamIOError, OSError):  # a failed job wrote no file
            FileSystems.delete([path])
    outcome.totals = Counter(totals)
    return outcome


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
