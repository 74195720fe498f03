"""Writes readings from files to a table on this machine, without a runner: in one process, or in one for each core.

The steps are those of the batch job. Files are taken in rounds, so that a backfill which was interrupted goes on after
the last whole round:

1. each process reads a file after the other, and writes its raw rows; confirmed readings go to files on this disk, each
   of which has some groups of sensors;
2. each process completes the windows of one such file after the other, from the shortest tier to the longest;
3. roll-ups follow the rows that were written.

Memory is bounded: a process has one file of readings in memory, which the number of such files keeps small.

Notes on this disk say which files are done: a folder with ``done.json`` and the refused records of these files. It is
gone when the backfill has ended: running it again begins anew.
"""

import fcntl
import itertools
import json
import os
import pickle
import shutil
import struct
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from pipeline.backfill.files import METER, REFUSED, REMARKS, ReadFileFn
from pipeline.backfill.request import Backfill, Outcome, Repeated, Survey
from pipeline.backfill.transforms import (
    LISTED,
    REPEATED,
    ROLLED_UP,
    SENSORS,
    CompleteFn,
    CompleteLongerFn,
    GatherFn,
    SurveyFn,
    kind_of_batch,
    repeated_in,
    work_rows,
)
from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.writing.rewriter import Rewriter
from pipeline.core.events.event import Event
from pipeline.core.panes.grouped_readings import RawRows, start_of_readings
from pipeline.core.schema.rate import span_of_batch
from pipeline.core.windows import sources
from pipeline.formats.lines import one_line
from pipeline.job.processes import SPAWN, processes_of
from pipeline.private_apis.no_runner import Output, Step, counted, dumps, loads
from pipeline.transforms import metrics
from pipeline.transforms.process import DEAD_LETTERS, Decoder, Expired, ProcessMessages
from pipeline.transforms.settle_rollups import GroupKey, SettleRollups, ShardKey, by_shard
from pipeline.transforms.tables import now_us
from pipeline.transforms.write import WriteRawRows

_ROUND_BYTES = 32 << 20  # of files for each process
_PARTITION_BYTES = 16 << 20  # of files for each file of readings; compressed ones have more readings
_PARTITIONS = 8  # of readings for each process, at least
_MOST_PARTITIONS = 512
_BUFFER_BYTES = 16 << 20  # of all files to which a process appends
_MOST_LISTED = 1000  # windows that wait to be listed
_MOST_STATS = 50_000  # windows whose statistics wait in memory for the longer ones
_MOST_EVENTS = 10_000  # that are surveyed together
_MOST_GROUPS = 2000  # rows of roll-ups that a process settles at once
_BYTES_OF_PROCESS = 8 << 20  # of files, for which another process is worth its start
_LETTERS = "letters-"  # the beginning of the names of files with refused records; numbers, by which they sort, follow
_DONE = "done.json"
_GROUP = struct.Struct("<I")
_FRAME = struct.Struct("<I")  # the size of what follows


class _BackfillSteps:
    """The steps of a backfill in one process."""

    def __init__(self, backfill: Backfill, folder: Path, partitions: int) -> None:
        FileSystems.set_options(backfill.options())
        self._backfill, self._folder, self._partitions = backfill, folder, partitions
        self._schema = backfill.target.schema
        self._table = backfill.target.name, self._schema, backfill.target.effective_retention
        self._kind = kind_of_batch(self._schema)
        self._steps: dict[str, Step] = {}
        self._connections = ExitStack()
        self._rewriter: Rewriter | None = None

    def close(self) -> None:
        """Closes connections."""
        for step in self._steps.values():
            step.close()
        self._connections.close()

    def _step(self, name: str, make: Callable[[], Any]) -> Step:
        """Returns a step, which the first call makes."""
        if name not in self._steps:
            self._steps[name] = Step(make())
        return self._steps[name]

    @property
    def _read(self) -> Step:
        return self._step("read", partial(ReadFileFn, self._backfill.maker))

    @property
    def _process(self) -> Step:
        backfill = self._backfill
        kinds, expiries = [self._kind], [backfill.expiry]
        make = partial(ProcessMessages, max_future=backfill.max_future, types=backfill.types, kinds=kinds)
        return self._step("process", lambda: make([self._schema], expiries=expiries).step())

    @property
    def _write(self) -> Step:
        write = WriteRawRows(self._table[0], self._schema, bulk=True, kind=self._kind)
        return self._step("write", write.step)

    def count(self, file: tuple[str, int], surveys: bool) -> Outcome:
        """Counts the events of a file, and those that are older than the table keeps readings."""
        backfill, outcome, waiting = self._backfill, Outcome(), list[Event]()
        decoder = Decoder("DecodeMessages", backfill.max_future, [self._schema], backfill.types)
        expired = Expired(backfill.expiry)
        with counted(metrics.NAMESPACE) as outcome.totals:
            decoder.start()
            for tag, value in self._read.bundle([file]):
                if tag == REMARKS:
                    outcome.remark(value)
                    continue
                letters = [value]
                if tag is None:
                    events, letters = decoder.decode(letters, now := now_us())
                    if events:
                        expired.count(events, now)
                        waiting += events if surveys else ()
                    if len(waiting) >= _MOST_EVENTS:
                        self._survey(waiting, outcome)
                for letter in letters:
                    outcome.refuse(letter)
            decoder.finish()
        self._survey(waiting, outcome)
        return outcome

    def _survey(self, events: list[Event], outcome: Outcome) -> None:
        """Surveys events, and removes them from the list."""
        if not events:
            return
        sensors, readings = (_Files(self._folder, name, self._partitions) for name in ("sensors", "readings"))
        for tag, value in self._step("survey", SurveyFn).bundle(events):
            if tag == SENSORS:
                sensors.add(zlib.crc32(value), value)
            else:
                outcome.survey = Survey.total([outcome.survey, value])
        for _, (group, data) in self._step("gather", partial(GatherFn, self._schema)).bundle(events):
            readings.add(group, _GROUP.pack(group) + data)
        sensors.close()
        readings.close()
        events.clear()

    def repeated(self, partition: int) -> Outcome:
        """Counts the sensors of a file of sensors, and what a file of readings repeats."""
        sensors = {sensor for _, sensor in _read_frames(self._folder / f"sensors-{partition}")}
        outcome = Outcome(survey=Survey(sensors=len(sensors)))
        for spans in self._spans(partition):
            outcome.repeated = Repeated.total([outcome.repeated, *map(repeated_in, spans)])
        return outcome

    def load(self, number: int, file: tuple[str, int]) -> Outcome:
        """Writes the raw rows of a file, and the confirmed readings to files on this disk."""
        outcome, readings = Outcome(), _Files(self._folder, "readings", self._partitions)
        keeps_letters = bool(self._backfill.dead_letters)
        letters = (self._folder / f"{_LETTERS}{number:08}").open("w") if keeps_letters else None

        def noted(outputs: Iterable[Output]) -> Iterator[Any]:
            for tag, value in outputs:
                if tag == REMARKS:
                    outcome.remark(value)
                elif tag in (REFUSED, DEAD_LETTERS):
                    outcome.refuse(value)
                    if letters:
                        letters.write(self._backfill.as_line(value) + "\n")
                else:
                    if isinstance(value, RawRows):
                        METER.note_rows(len(value.rows))
                    yield value

        read, process, write = self._read, self._process, self._write
        with counted(metrics.NAMESPACE) as outcome.totals, letters or nullcontext():
            for step in (read, process, write):
                step.start()
            messages = _chained(noted(read.process(file)), lambda: noted(read.finish()))
            rows = _chained(_each(noted, process, messages), lambda: noted(process.finish()))
            for group, data in _chained(_each(noted, write, rows), lambda: noted(write.finish())):
                readings.add(group, _GROUP.pack(group) + data)
        readings.close()
        return outcome

    def complete(self, partition: int) -> Outcome:
        """Completes the windows of a file of readings: all tiers of a group of sensors, then the next group."""
        if not self._schema.tiers:
            return self.repeated(partition)
        outcome = Outcome()
        with counted(metrics.NAMESPACE) as outcome.totals:
            for spans in self._spans(partition):
                self._complete_group(spans, outcome)
        return outcome

    def _spans(self, partition: int) -> Iterator[Iterator[tuple[tuple[int, int], list[bytes]]]]:
        """Yields the readings of each group by span, which are read when they are needed."""
        span_us = span_of_batch(self._schema.rate, self._kind[0])
        path = self._folder / f"readings-{partition}"
        places: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for position, frame in _read_frames(path):
            [group], data = _GROUP.unpack_from(frame), frame[_GROUP.size :]
            span = start_of_readings(data) // span_us
            places[group][span].append((position + _GROUP.size, len(data)))
        for group, spans in sorted(places.items()):
            yield (((group, span), _parts(path, found)) for span, found in sorted(spans.items()))

    def _complete_group(self, spans: Iterable[Any], outcome: Outcome) -> None:
        backfill, tiers = self._backfill, self._schema.tiers
        of_job = backfill.allowed_lateness, backfill.late_firing
        of_sources = sources(tuple(tier.window for tier in tiers))
        waiting: list[dict[tuple[str, int], dict[int, Any]]] = [defaultdict(dict) for _ in tiers]
        held, listed = 0, list[tuple[str, int]]()
        marks = _Files(self._folder, "rollups", self._partitions)
        for index, tier in enumerate(tiers):
            if of_sources[index] < 0:
                make = partial(CompleteFn, *self._table, tier, *of_job, backfill.max_future)
                elements: Iterable[Any] = spans
            else:
                make = partial(CompleteLongerFn, *self._table, tier)
                elements = [(window, shorter.items()) for window, shorter in waiting[index].items()]
                waiting[index].clear()
            longer = [at for at, source in enumerate(of_sources) if source == index]
            for tag, value in self._step(f"complete {tier.window.text}", make).bundle(elements):
                if tag == REPEATED:
                    outcome.repeated = Repeated.total([outcome.repeated, value])
                elif tag == LISTED:
                    listed.append(value)
                    if len(listed) >= _MOST_LISTED:
                        self._list(listed)
                elif tag == ROLLED_UP:
                    shard, sensor_id = by_shard(value, self._schema.shards_of_rollups)
                    marks.add(hash(shard), pickle.dumps((shard, sensor_id)))  # a tuple of integers has one hash
                else:
                    sensor_id, (start_us, stats) = value
                    for at in longer:
                        shorter = waiting[at][sensor_id, tiers[at].window.start_of(start_us)]
                        if stats is not None and held < _MOST_STATS:  # the table has the others
                            shorter[start_us] = stats
                            held += 1
        self._list(listed)
        marks.close()

    def _list(self, windows: list[tuple[str, int]]) -> None:
        """Puts windows on the table's work list, and removes them from ``windows``."""
        if windows:
            if self._rewriter is None:
                self._rewriter = self._connections.enter_context(Rewriter.open(self._table[0]))
            self._rewriter.write(row for window in windows for row in work_rows(window, self._schema))
            windows.clear()

    def settle_shards(self, partition: int) -> Outcome:
        """Settles the shards of roll-ups that contain written windows."""
        outcome, shards = Outcome(), defaultdict[ShardKey, list[str]](list)
        for _, mark in _read_frames(self._folder / f"rollups-{partition}"):
            shard, sensor_id = pickle.loads(mark)  # noqa: S301 (this program wrote it, to its own folder)
            shards[shard].append(sensor_id)
        with counted(metrics.NAMESPACE) as outcome.totals:
            step = self._step("settle shards", self._settle.shards)
            outcome.groups.update(value for _, value in step.bundle(shards.items()))
        return outcome

    def settle_groups(self, groups: Sequence[GroupKey]) -> Outcome:
        """Settles groups of roll-ups."""
        outcome = Outcome()
        with counted(metrics.NAMESPACE) as outcome.totals:
            list(self._step("settle groups", self._settle.groups).bundle(groups))
        return outcome

    @property
    def _settle(self) -> SettleRollups:
        return SettleRollups(self._table[0], self._schema)


class _Files:
    """Files on this disk to which several processes append."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self._path, self._count = folder / name, count
        self._waiting: dict[int, bytearray] = defaultdict(bytearray)

    def add(self, key: int, data: bytes) -> None:
        """Appends to the file that a key determines."""
        number = key % self._count
        buffer = self._waiting[number]
        buffer += _FRAME.pack(len(data))
        buffer += data
        if len(buffer) >= _BUFFER_BYTES // self._count:
            self._append(number, self._waiting.pop(number))

    def close(self) -> None:
        """Writes what waits."""
        for number, buffer in self._waiting.items():
            self._append(number, buffer)
        self._waiting.clear()

    def _append(self, number: int, buffer: bytearray) -> None:
        file = os.open(f"{self._path}-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.write(file, buffer) < len(buffer):  # a later write would not follow this one
                raise ServerError(f"{self._path.parent}: the disk is full; set TMPDIR to a folder with more room")
        except OSError as error:
            raise ServerError(f"{self._path.parent}: {error.strerror}; set TMPDIR to another folder") from error
        finally:
            os.close(file)


def _read_frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields what was added to a file, with its position."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while head := file.read(_FRAME.size):
            position = file.tell()
            yield position, file.read(_FRAME.unpack(head)[0])


def _parts(path: Path, places: Iterable[tuple[int, int]]) -> list[bytes]:
    """Returns the bytes at some positions of a file, given the size of each."""
    with path.open("rb") as file:
        parts = list[bytes]()
        for position, size in places:
            file.seek(position)
            parts.append(file.read(size))
        return parts


def _each(noted: Callable[[Iterable[Output]], Iterator[Any]], step: Step, elements: Iterable[Any]) -> Iterator[Any]:
    for element in elements:
        yield from noted(step.process(element))


def _chained(first: Iterator[Any], then: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    yield from first
    yield from then()


_own: list[_BackfillSteps] = []  # of this process: its one


def _begin(backfill: bytes, folder: Path, partitions: int, meters: Any, numbers: Any) -> None:
    with numbers.get_lock():
        number, numbers.value = numbers.value, numbers.value + 1
    METER.share(meters, number)
    _own.append(_BackfillSteps(loads(backfill), folder, partitions))


def _call(method: str, arguments: tuple[Any, ...]) -> Outcome:
    outcome: Outcome = getattr(_own[0], method)(*arguments)
    return outcome


_Each = Callable[[str, Iterable[tuple[Any, ...]]], Iterator[Outcome]]
"""Yields the outcomes of calls of a method of the steps as they are there, given the method and arguments a call."""


@contextmanager
def _crew(backfill: Backfill, folder: Path, partitions: int, size: int) -> Iterator[_Each]:
    """Yields a function that shares calls among the processes of a backfill: this one, or several others."""
    if size == 1:
        with closing(_BackfillSteps(backfill, folder, partitions)) as own:
            yield lambda method, calls: (getattr(own, method)(*arguments) for arguments in calls)
        return
    meters, numbers = METER.shared(SPAWN, size), SPAWN.Value("i", 0)
    with processes_of(size, _begin, dumps(backfill), folder, partitions, meters, numbers) as processes:
        yield lambda method, calls: processes.each(_call, ((method, arguments) for arguments in calls))


class Done:
    """The files that a backfill has done, if an earlier run with the same identity was interrupted, and their outcome.

    Raises:
        ServerError: another process has the notes: the same backfill is running.
    """

    def __init__(self, identity: Iterable[bytes]) -> None:
        digest = blake2b(b"\x00".join(identity), digest_size=10).hexdigest()
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidetable"
        self.folder = root / f"backfill-{digest}"
        self._lock_path = self.folder.with_suffix(".lock")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._lock_path.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ServerError(
                "the same backfill is running; wait until it has ended, and run this one again"
            ) from error
        self.files: dict[str, tuple[int, str]] = {}
        self.outcome = Outcome()
        try:
            notes = json.loads((self.folder / _DONE).read_text())
            self.files = {path: (size, checksum) for path, (size, checksum) in notes["files"].items()}
            self.outcome = Outcome.of_json(notes["outcome"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()  # none, or those of another release

    def has(self, path: str, size: int) -> bool:
        """Returns whether a file is done, and has not changed since."""
        noted = self.files.get(_absolute(path))
        return noted is not None and noted == (size, _checksum(path))

    @property
    def letters(self) -> int:
        """The number that follows those of all files with refused records."""
        return max([int(file.name.removeprefix(_LETTERS)) + 1 for file in self.folder.glob(f"{_LETTERS}*")], default=0)

    def note(self, sizes: Mapping[str, int], letters: Iterable[Path]) -> None:
        """Notes that files are done, with the outcome of all, and moves the files with their refused records."""
        for path, size in sizes.items():
            if FileSystems.exists(path) and _size(path) == size:
                self.files[_absolute(path)] = size, _checksum(path)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in letters:
            shutil.move(file, self.folder / file.name)
        waiting = self.folder / f"{_DONE}.new"
        waiting.write_text(json.dumps({"files": self.files, "outcome": self.outcome.as_json()}))
        waiting.replace(self.folder / _DONE)

    def write_letters(self, target: str) -> None:
        """Writes the refused records of all files to one, local or in a bucket. Replaces an existing one."""
        try:
            with FileSystems.create(target, "text/plain") as file:
                for letters in sorted(self.folder.glob(f"{_LETTERS}*")):
                    file.write(letters.read_bytes())
        except (BeamIOError, OSError) as error:
            raise ServerError(f"{target}: {getattr(error, 'strerror', None) or one_line(error)}") from error

    def close(self) -> None:
        """Lets another process have the notes."""
        self._lock_path.unlink(missing_ok=True)
        self._lock.close()

    def forget(self) -> None:
        """Deletes the notes."""
        self.files, self.outcome = {}, Outcome()
        shutil.rmtree(self.folder, ignore_errors=True)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _size(path: str) -> int:
    return (
        int(FileSystems.match([path])[0].metadata_list[0].size_in_bytes) if "://" in path else Path(path).stat().st_size
    )


def _checksum(path: str) -> str:
    if "://" in path:
        return str(FileSystems.checksum(path))
    digest = blake2b(digest_size=16)
    try:
        with Path(path).open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()


def count(backfill: Backfill, *, surveys: bool = False) -> Outcome:
    """Counts the events and the expired ones among them. Reads and decodes everything, and writes nothing."""
    total = Outcome(processes=processes_for(backfill.files))
    partitions = _partitions(max(backfill.files.values()), total.processes)
    METER.begin(sum(backfill.files.values()), 1)
    with (
        tempfile.TemporaryDirectory(prefix="tidetable-") as name,
        _crew(backfill, Path(name), partitions, total.processes) as each,
    ):
        for outcome in each("count", ((file, surveys) for file in backfill.files.items())):
            total.add(outcome)
        for outcome in each("repeated", ((number,) for number in range(partitions if surveys else 0))):
            total.add(outcome)
    return total


def load(backfill: Backfill, done: Done) -> Outcome:
    """Writes the rows of all events."""
    total = done.outcome
    left = {path: size for path, size in backfill.files.items() if not done.has(path, size)}
    total.done_before = len(backfill.files) - len(left)
    total.processes, numbers = processes_for(left), itertools.count(done.letters)
    METER.begin(sum(left.values()), 2)
    with tempfile.TemporaryDirectory(prefix="tidetable-") as name:
        folder, most_bytes = Path(name), _ROUND_BYTES * total.processes
        partitions = _partitions(max([*left.values(), most_bytes]), total.processes)
        with _crew(backfill, folder, partitions, total.processes) as each:
            for files in _rounds(left, most_bytes):
                total.add(_round(each, zip(numbers, files.items(), strict=False), partitions, sum(files.values())))
                done.note(files, folder.glob(f"{_LETTERS}*"))
                for file in folder.iterdir():
                    file.unlink()
    if backfill.dead_letters:
        done.write_letters(backfill.dead_letters)
    done.forget()
    return total


def _round(each: _Each, files: Iterable[tuple[int, tuple[str, int]]], partitions: int, size: int) -> Outcome:
    """Takes files, with their numbers and ``size`` bytes in all, through all steps."""
    outcome = Outcome.total(each("load", files))
    numbers = [(number,) for number in range(partitions)]
    for number, part in enumerate(each("complete", numbers)):
        outcome.add(part)
        METER.note_bytes(size * (number + 1) // partitions - size * number // partitions)
    for part in each("settle_shards", numbers):
        outcome.add(part)
    groups = sorted(outcome.groups)
    batches = (groups[first : first + _MOST_GROUPS] for first in range(0, len(groups), _MOST_GROUPS))
    for part in each("settle_groups", ((batch,) for batch in batches)):
        outcome.add(part)
    outcome.groups.clear()
    return outcome


def processes_for(sizes: Mapping[str, int]) -> int:
    """Returns the number of processes for files: one for each core, and fewer for a few small files."""
    of_bytes = 1 + sum(sizes.values()) // _BYTES_OF_PROCESS
    return max(1, min(len(os.sched_getaffinity(0)), len(sizes), of_bytes))


def _partitions(largest: int, processes: int) -> int:
    """Returns the number of files of readings, given the bytes of the largest file, or of a round."""
    return min(max(_PARTITIONS * processes, largest // _PARTITION_BYTES), _MOST_PARTITIONS)


def _rounds(sizes: Mapping[str, int], most_bytes: int) -> Iterator[dict[str, int]]:
    files, total = dict[str, int](), 0
    for path, size in sizes.items():
        files[path] = size
        total += size
        if total >= most_bytes:
            yield files
            files, total = {}, 0
    if files:
        yield files
