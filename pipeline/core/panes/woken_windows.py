"""Windows to wake that the table names: an earlier process noted them, or a backfill listed them.

A process on one machine has its open windows in memory, and notes in the table which windows it is yet to finish. When
it has ended in any way, the next process reads the notes and the raw rows of these windows, and fires their panes. A
note is written before the messages of a window's first readings are acknowledged. It is removed when the last panes of
its windows have certainly been written. The note of the first readings of a longer window stays until the last pane of
that window.

The notes of a bundle are rows of the table's own, one for each time at which notes are removed:

    key    schema#windows#{subscription, hashed}#{time of removal, 16 digits}#{number, 16 digits}
    cell   {shortest tier's family}:windows = by zlib, JSON: the sensors of each window, by the window's start in µs

The cell's timestamp is the latest possible, so no policy by age collects it.

The windows that backfills list beside a job are in the work list. The table has all that a backfill read, and the state
of the job lacks it. So the job looks through the list again and again, and wakes the windows that backfills have listed
since its last look: their next panes have what the table has. The column of a listing tells when it was made; it
reaches the table later. So each look also covers the minute before the last one. Every 20 minutes, a look covers the 20
minutes before the last such look: by then every listing has arrived. To wake a window twice changes nothing.
"""

import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from pipeline.core.completion.work_list import BACKFILLED, listing, parse_work_key, work_range
from pipeline.core.events.event import LATEST_US
from pipeline.core.panes.firing import IN_FLIGHT_US
from pipeline.core.panes.grouped_readings import read_group_values, start_of_readings, wakes
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Cell, EncodedRow, EncodedRows, KeyRange, Row, delete_row, encoded, prefix_range
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import Tier

_PREFIX = b"schema#windows#"
_COLUMN = b"windows"
_LATEST_TIMESTAMP_US = LATEST_US - LATEST_US % 1000
_MOST_WINDOWS = 20_000  # of a row
_MOST_BYTES = 16 << 20  # of them as JSON: ids are short
_SPARE_US = 120_000_000  # for which a note of late readings also covers those that come later
_LOOK_US = 20_000_000
_LOOKS = 4

Windows = Mapping[int, Collection[str]]
"""The sensors of windows of the shortest tier, by the windows' start in µs."""


def notes_range() -> KeyRange:
    """Returns the keys of all notes."""
    return prefix_range(_PREFIX)


def noted_row(key: bytes, family: str, windows: Windows) -> Row:
    """Returns the row of a note."""
    content = json.dumps({str(start_us): list(sensors) for start_us, sensors in windows.items()})
    return Row(key, [Cell(family, _COLUMN, _LATEST_TIMESTAMP_US, zlib.compress(content.encode(), 1))])


def windows_of(row: Row) -> Windows:
    """Returns the windows of a note. Raises ValueError for bytes of another program."""
    found = next((cell.value for cell in row.cells if cell.qualifier == _COLUMN), None)
    if found is None:
        return {}
    content = zlib.decompressobj()
    try:
        text = content.decompress(found, _MOST_BYTES)
    except zlib.error:
        text = b""
    if not content.eof:
        raise ValueError(f"another program wrote row {row.key.decode(errors='backslashreplace')}; delete the row")
    return {int(start): ids for start, ids in json.loads(text).items()}


def without_sensors(rows: Iterable[Row], sensors: Collection[str]) -> Iterator[Row]:
    """Yields the notes that have windows of these sensors, without them."""
    for row in rows:
        found = windows_of(row)
        left = {start_us: [each for each in of_start if each not in sensors] for start_us, of_start in found.items()}
        if left != found:
            yield noted_row(row.key, row.cells[0].family, left)


def wakes_of(windows: Windows, groups: int) -> Iterator[tuple[int, bytes]]:
    """Yields ``(group, readings)`` without any reading, which make the panes of windows fire as the table has them."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for start_us, sensors in windows.items():
        for sensor_id in sensors:
            found[group_of(sensor_id.encode(), groups), start_us].append(sensor_id)
    for (group, start_us), of_group in found.items():
        for part in wakes(start_us, of_group):
            yield group, part


class _Until(NamedTuple):
    """The time until which a note stays.

    Attributes:
        time_us: the time.
        open_us: the time at which the last of its windows closes; 0 if all are closed, and only wait for late panes.
    """

    time_us: int
    open_us: int


class NotedWindows:
    """The notes of a process in one table.

    Several threads may use them.

    Args:
        tiers: the table's tiers, shortest first.
        subscription: the subscription from which the process writes the table.
        lateness_us: the time for which a window stays open after its end.
        late_us: the time from late readings to their pane.
    """

    def __init__(self, tiers: Sequence[Tier], subscription: str, lateness_us: int, late_us: int) -> None:
        self._tiers, self._lateness_us, self._late_us = tiers, lateness_us, late_us
        self._prefix = b"%b%b#" % (_PREFIX, hashlib.sha256(subscription.encode()).hexdigest()[:16].encode())
        self._noted: list[dict[int, dict[str, int]]] = [{} for _ in tiers]  # of each tier: start, sensor, until when
        self._new: dict[_Until, dict[int, dict[str, None]]] = {}
        self._rows: dict[bytes, _Until] = {}
        self._number = 0
        self._looks_us: list[int] = []
        self._lock = Lock()

    @property
    def range(self) -> KeyRange:
        """The keys of the notes of this process and of the processes before."""
        return prefix_range(self._prefix)

    def read(self, row: Row, now_us: int, certain_us: int) -> Windows:
        """Takes over a note of the process before. It stays at least until panes have fired that restore its windows.

        Args:
            row: the note's row.
            now_us: the current time.
            certain_us: the start of the first window of which the table certainly has all raw rows.

        Returns:
            The windows to wake; all in a noted one, if a shorter tier was added since. Not those that were over, of
            which the note stayed for a longer window, if raw rows may be gone: a repair would have to check them for
            no reason.
        """
        until_us = int(row.key[len(self._prefix) :].partition(b"#")[0])
        with self._lock:
            self._rows[row.key] = _Until(max(until_us, self._late_until_us(now_us)), until_us)
        over_us = min(until_us, now_us - self._late_us) - self._lateness_us
        shortest = self._tiers[0].window
        noted = next((tier.window for tier in self._tiers if tier.family == row.cells[0].family), shortest)
        return {
            start_us: sensors
            for noted_us, sensors in windows_of(row).items()
            for start_us in shortest.starts(noted_us, noted.end_of(noted_us))
            if start_us >= certain_us or shortest.end_of(start_us) >= over_us
        }

    def add(self, part: bytes, now_us: int) -> None:
        """Adds the windows of readings, encoded by :mod:`pipeline.core.panes.grouped_readings`, to the next notes."""
        start_us, fires_us, late_us = start_of_readings(part), now_us + self._late_us, self._late_until_us(now_us)
        with self._lock:
            spans = []
            for tier, noted in zip(self._tiers, self._noted, strict=True):
                of_us = tier.window.start_of(start_us)
                closes_us = tier.window.end_of(of_us) + self._lateness_us
                least_us = max(closes_us, fires_us)
                until_us = closes_us if closes_us == least_us else late_us
                spans.append((noted.setdefault(of_us, {}), least_us, until_us, closes_us))
            for sensor_id, *_ in read_group_values(part):
                last_us = open_us = 0
                for sensors, least_us, until_us, closes_us in spans:
                    if sensors.get(sensor_id, 0) < least_us:
                        sensors[sensor_id] = until_us
                        last_us, open_us = max(last_us, until_us), max(open_us, closes_us if closes_us > now_us else 0)
                if last_us:
                    of_time = self._new.setdefault(_Until(last_us, open_us), {})
                    of_time.setdefault(start_us, {})[sensor_id] = None

    def take(self, now_us: int) -> EncodedRows:
        """Returns the rows of new notes, and the removal of those that are over."""
        rows = EncodedRows()
        with self._lock:
            for until, windows in self._new.items():
                for some in _in_rows(windows):
                    self._number = max(self._number + 1, now_us)
                    key = b"%b%016d#%016d" % (self._prefix, until.time_us, self._number)
                    self._rows[key] = until
                    rows.append(encoded(noted_row(key, self._tiers[0].family, some)))
            self._new = {}
            over_us = self._over_us(now_us)
            rows += self._removed(key for key, until in self._rows.items() if until.time_us <= over_us)
        return rows

    def finish(self, now_us: int) -> EncodedRows:
        """Returns the removal of all notes but those of open windows, when every waiting pane has been written."""
        with self._lock:
            return self._removed(key for key, until in self._rows.items() if until.open_us <= now_us)

    def _late_until_us(self, now_us: int) -> int:
        """Returns the time until which a note of late readings stays, if they arrive now."""
        return -(-(now_us + self._late_us + _SPARE_US) // _LOOK_US) * _LOOK_US

    def _over_us(self, now_us: int) -> int:
        """Returns the time by which notes are over, as this is called in one bundle after the other.

        A bundle begins when everything is written that was due before. Panes wait for others, at most 10 seconds at
        each of a few steps, and no bundle begins while a server is away. So several bundles have to begin, with some
        time between them, after the time at which a note is over.
        """
        looks_us = self._looks_us
        if looks_us and now_us < looks_us[-1]:
            looks_us.clear()  # the clock was set back
        if not looks_us or now_us >= looks_us[-1] + _LOOK_US:
            looks_us.append(now_us)
            del looks_us[:-_LOOKS]
        return looks_us[0] if len(looks_us) == _LOOKS else 0

    def _removed(self, keys: Iterable[bytes]) -> EncodedRows:
        rows = EncodedRows(EncodedRow(key, delete_row(), 1) for key in keys)
        last_us = max((self._rows.pop(row.key).time_us for row in rows), default=0)
        for noted in self._noted if rows else ():
            for start_us, sensors in list(noted.items()):
                left = {sensor_id: until_us for sensor_id, until_us in sensors.items() if until_us > last_us}
                if left:
                    noted[start_us] = left
                else:
                    del noted[start_us]
        return rows


def _in_rows(windows: Mapping[int, Collection[str]]) -> Iterator[Windows]:
    """Yields the windows of several rows."""
    found: dict[int, list[str]] = {}
    count = 0
    for start_us, sensors in windows.items():
        for sensor_id in sensors:
            found.setdefault(start_us, []).append(sensor_id)
            count += 1
            if count == _MOST_WINDOWS:
                yield found
                found, count = {}, 0
    if found:
        yield found


_AGAIN_US = 60_000_000
_PAST_BACKFILLED = BACKFILLED + b"."  # the byte after the hyphen


class Look(NamedTuple):
    """A look through the list, or the part of it up to a row.

    Attributes:
        began_us: the time at which it began.
        from_us: the time of the first listings that it covers.
        whole_us: the time at which the last look began that covered 20 minutes.
        after: the key after which the rest of the list is left to read; "" if nothing is left.
    """

    began_us: int
    from_us: int
    whole_us: int
    after: str = ""

    @classmethod
    def before_first(cls, now_us: int) -> "Look":
        """Returns what the first look of a job follows that begins now."""
        return cls(now_us, now_us, now_us - IN_FLIGHT_US)

    def next(self, now_us: int) -> "Look":
        """Returns the rest of this look, or the look after it."""
        if self.after:
            return self
        if now_us >= self.whole_us + IN_FLIGHT_US:
            return Look(now_us, self.whole_us - IN_FLIGHT_US, now_us)
        return Look(now_us, min(self.began_us, now_us) - _AGAIN_US, self.whole_us)

    def selection(self, tier: Tier) -> RowSelection:
        """Returns the rows of the list that are left to read."""
        start, end = work_range(tier.window)
        columns = listing(BACKFILLED, max(0, self.from_us)), _PAST_BACKFILLED
        keys = KeyRange(self.after.encode() + b"\x00" if self.after else start, end)
        return RowSelection(keys, CellSelection((tier.family,), qualifier_range=columns))

    def to_bytes(self) -> bytes:
        """Serializes the look."""
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Look":
        """Parses what :meth:`to_bytes` wrote."""
        return cls(*json.loads(data))


def listed_windows(rows: Iterable[Row], tier: Tier, certain_us: int) -> Windows:
    """Returns the windows of rows of the list. Those before ``certain_us`` wait for a repair: raw rows may be gone."""
    found: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        with suppress(ValueError):  # another program's row
            sensor_id, start_us = parse_work_key(tier.window, row.key)
            if start_us >= certain_us:
                found[start_us].append(sensor_id)
    return found
