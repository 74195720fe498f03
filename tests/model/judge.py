"""Invariants of tables, whatever is done to them.

An aggregate row that differs from its window's readings is about to be written, or its window is on the work list.
The contract's exceptions:

- windows that got no further event after a job was lost with its state, those of an interrupted backfill, and longer
  ones around them, until they are repaired;
- missing rows of windows that are older than their tier;
- windows whose aggregate rows may be collected;
- windows that were backfilled or repaired while a job ran that is going to compute them again.

No row ever counts less than before, unless it counted something twice, was recomputed from all of its raw rows, or
belongs to a window that was backfilled while a job wrote it too; such a window is listed, or the job computes it again.

A job lists a window only if its raw rows can't serve.

Rows of newest readings contain readings that were published, and never get older. After a drain, they contain the
newest that the job got; after a repair, the newest of what it read.
"""

from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from zoneinfo import ZoneInfo

from pipeline.core.events.event import LATEST_US
from pipeline.core.queries.sweeps import Span, events_within
from pipeline.core.rows.rows import KeyRange
from tests.model.reference import MS, counts_of, end_of, less, start_of, value_of
from tests.model.table import Table

_LABELS = {
    "hourly": ("1h", "%Y-%m-%dT%H"),
    "daily": ("1d", "%Y-%m-%d"),
    "weekly": ("1w", "%Y-%m-%d"),
    "monthly": ("1mo", "%Y-%m"),
}


class Judge:
    """Checks a world, its subclass, against the truths.

    Windows are identified by table, length, sensor and start.

    Attributes:
        seen: every aggregate row at the last check.
        abandoned: windows whose last pane was lost with a job without redelivery, or whose backfill was
            interrupted.
        beside: windows that were backfilled or repaired while a job ran: an earlier pane may come later.
        grown: windows that existed before their tier.
        undeclared: table, metric and window of those that existed before the metric's increase was declared.
    """

    def __init__(self):
        self.seen, self.newest_seen = {}, {}
        self.abandoned, self.beside, self.grown = set(), set(), set()
        self.undeclared = set()

    def rows(self, name):
        """Returns a table's aggregate rows: values by column, by window length, sensor and start."""
        table, found = self.tables[name], {}
        for key in table.keys(b"agg#"):
            newest = table.newest(key)
            counted_us = max(cell.timestamp_us for (_, name), cell in newest.items() if name == b"reading_count")
            values = {
                name.decode(): cell.value for (_, name), cell in newest.items() if cell.timestamp_us >= counted_us
            }
            found[self.window_of(key)] = {name: float(value) for name, value in values.items() if is_number(name)}
        return found

    @staticmethod
    @lru_cache(maxsize=1 << 14)
    def window_of(key):
        """Returns length, sensor and start from the key of an aggregate row or work list row."""
        _, label, sensor_id, start = key.decode().split("#")
        label, _, zone = label.partition("@")
        text, time_format = _LABELS.get(label, (label, "%Y-%m-%dT%H:%M:%S"))
        text, time = f"{text}@{zone}" if zone else text, datetime.strptime(start, time_format)
        return text, sensor_id, round(time.replace(tzinfo=ZoneInfo(zone or "UTC")).timestamp()) * 1_000_000

    def listed(self, name):
        """Returns the windows of the work list, by sensor and start."""
        return {self.window_of(key)[1:] for key in self.tables[name].keys(b"repair#")}

    def check(self):
        """Checks every table against its truth."""
        for name in self.names:
            self._check_raw(name)
            self._check_retention(name)
            self._check_aggregates(name)

    def _check_raw(self, name):
        assert self._stored(name) == {
            (identity, metric) for identity, metrics in self.truths[name].held.items() for metric in metrics
        }

    def _stored(self, name):
        """Returns the readings in raw rows."""
        schema, kind, found = self.schemas[name], self.specs[name].kind, set()
        for record in events_within(schema, self.tables[name], KeyRange(b"", b""), Span(0, LATEST_US + 1)):
            time_us = record.event_time_us - record.event_time_us % kind.grain_us
            location = record.metadata.get("location", "") if kind.location else ""
            identity = record.sensor_id, time_us, location, record.event_id if kind.event_id else ""
            found |= {(identity, metric) for metric in record.readings}
        return found

    def _check_retention(self, name):
        """Asserts that all readings exist that the retention promises."""
        from_us = self.retention(name).readings_from_us(self.now_us)
        truth = self.truths[name]
        gone = [
            each
            for each, metrics in truth.accepted.items()
            if truth.held.get(each, set()) != metrics and each[1] >= from_us
        ]
        assert not gone, f"{name}: {gone} are gone, but promised by the retention"

    def _check_aggregates(self, name):
        rows, listed = self.rows(name), self._listed_soon(name)
        pending, kept = self._pending(name), self.job.kept(name) if self.job is not None else set()
        soon = self._soon(name, pending | kept)
        for number, tier in enumerate(self.schemas[name].tiers):
            text = tier.window.text
            truth = self.truths[name].windows(text)
            for sensor_id, start_us in truth.keys() | {key[1:] for key in rows if key[0] == text}:
                row, counted = rows.get((text, sensor_id, start_us), {}), truth.get((sensor_id, start_us))
                mark = name, text, sensor_id, start_us
                if counted is not None and counted.agrees(_plain(row)) and self._increases(mark, row, soon):
                    if not self._lacks_shorter(number, mark):
                        self.abandoned.discard(mark)
                    self.grown.discard(mark)
                    continue
                known = (
                    (number, sensor_id, start_us) in pending
                    or (mark in self.beside and (number, sensor_id, start_us) in kept)
                    or self._may_be_gone(mark, tier)
                    or any(each == sensor_id and start_us <= at_us < end_of(start_us, text) for each, at_us in listed)
                    or self._excused(mark, row)
                )
                assert known, f"{_shown(mark)} is {row}, not {counted}, and neither listed nor excused"

    def _lacks_shorter(self, number, mark):
        """Returns whether a shorter window in one of the tier with this number is abandoned: nobody finds it."""
        name, text, sensor_id, start_us = mark
        shorter = {tier.window.text for tier in self.schemas[name].tiers[:number]}
        return any(
            of == name and of_sensor == sensor_id and each in shorter and start_us <= each_us < end_of(start_us, text)
            for of, each, of_sensor, each_us in self.abandoned
        )

    def _soon(self, name, windows=()):
        """Returns the windows that are about to change: sensor, start and end."""
        tiers = self.schemas[name].tiers
        found = [(tiers[number].window.text, *window) for number, *window in windows]
        found += [mark[1:] for mark in self.abandoned | self.grown if mark[0] == name]
        found += [self.window_of(key) for key in self.listed_keys(name)]
        return {(sensor_id, start_us, end_of(start_us, text)) for text, sensor_id, start_us in found}

    def _increases(self, mark, row, soon):
        """Returns whether a row tells the increases of its window, as far as that can be known.

        The reading before the window has to be in raw rows, and in the row of its own window, which must not be about
        to change.
        """
        name, text, sensor_id, start_us = mark
        schema, truth = self.schemas[name], self.truths[name]
        retention, shortest = self.retention(name), schema.tiers[0]
        kept_us = max(
            retention.readings_from_us(self.now_us),
            retention.aggregates_from_us(shortest, self.now_us),
            retention.added.get(shortest.family, 0),
        )
        for column in row:
            metric = column.removeprefix("count_")
            if metric == column or not schema.statistics.carries_to(metric):
                continue
            before_us = truth.before(sensor_id, metric, start_us)
            changes = [from_us <= (before_us or 0) < to_us for each, from_us, to_us in soon if each == sensor_id]
            if before_us is not None and (before_us < kept_us or any(changes)):
                continue
            found = row.get(f"increase_{metric}")
            if found is None and (name, metric, *mark[1:]) in self.undeclared:
                continue
            expected = truth.increase(sensor_id, metric, start_us, text)
            if found is None or abs(Fraction(found) - expected) > Fraction(1, 10**6):
                return False
        return True

    def _excused(self, mark, row):
        """Returns whether the contract allows an unlisted window to be wrong."""
        return mark in self.abandoned or (mark in self.grown and not row)

    def _listed_soon(self, name):
        """Returns the windows of the work list, and those that the job is about to add, by sensor and start."""
        return {self.window_of(key)[1:] for key in self.listed_keys(name)}

    def listed_keys(self, name):
        """Returns the keys of the work list's rows, and of those that the job is about to write."""
        found = set(self.tables[name].keys(b"repair#"))
        if self.job is not None:
            scratch = Table({})
            for written in self.job.sink:
                if written.name == name:
                    scratch.write_rows(row for row in written.rows if row.key.startswith(b"repair#"))
            found.update(scratch.keys())
        return found

    def _pending(self, name):
        pending = self.job.pending(name) if self.job is not None else set()
        for message in self.backlog:
            for event in message.events:
                pending |= {
                    (number, event.sensor_id, start_of(event.time_us, tier.window.text))
                    for number, tier in enumerate(self.schemas[name].tiers)
                }
        return pending

    def _may_be_gone(self, mark, tier):
        """Returns whether an aggregate row may be collected, by the table's retention."""
        return mark[3] < self.retention(mark[0]).aggregates_from_us(tier, self.now_us)

    def look(self, *, collected=False, repaired=None):
        """Asserts that no aggregate row counts less than at the last check."""
        for name in self.names:
            rows, tiers = self.rows(name), {tier.window.text: tier for tier in self.schemas[name].tiers}
            for window, before in self.seen.get(name, {}).items():
                row, mark = rows.get(window, {}), (name, *window)
                if not less(counts_of(row), counts_of(before)):
                    continue
                text, *of_sensor = window
                expected, left = (
                    self.truths[name].windows(text, held=held).get(tuple(of_sensor)) for held in (False, True)
                )
                allowed = (
                    (collected and not row and self._may_be_gone(mark, tiers[text]))
                    or expected is None
                    or not expected.includes(before)  # it counted something twice
                    or mark in self.beside
                    or (repaired == name and left == expected and expected.agrees(_plain(row)))
                )
                assert allowed, f"{_shown(mark)} was {before}, and is {row}"
            self.seen[name] = rows
            self._look_at_newest(name)

    def newest(self, name):
        """Returns the times of newest readings in µs, by sensor and metric."""
        found = {}
        for key in self.tables[name].keys(b"latest#"):
            sensor_id = key.decode().partition("#")[2]
            for cell in self.tables[name].newest(key).values():
                metric = cell.qualifier.decode()
                assert float(cell.value) == value_of(cell.timestamp_us, metric), f"{name.table}: {cell} of {sensor_id}"
                found[sensor_id, metric] = cell.timestamp_us
        return found

    def _look_at_newest(self, name):
        newest, accepted = self.newest(name), self.truths[name].accepted
        published = {(each[0], metric, each[1] // MS * MS) for each, metrics in accepted.items() for metric in metrics}
        assert {(*of, time_us) for of, time_us in newest.items()} <= published, f"{name.table}: {newest}"
        self._assert_newest(name, self.newest_seen.get(name, {}))
        self.newest_seen[name] = newest

    def _assert_newest(self, name, times_us):
        newest = self.newest(name)
        older = {of: time_us for of, time_us in times_us.items() if newest.get(of, 0) < time_us}
        assert not older, f"{name.table}: {newest} is older than {older}"

    def check_newest_of_job(self):
        """Asserts that tables contain the newest readings that the job got."""
        for (name, *of), time_us in self.job.newest.items():
            self._assert_newest(name, {tuple(of): time_us // MS * MS})

    def _check_newest_of_repair(self, name):
        """Asserts that a repair of everything wrote the newest readings of windows that are over."""
        if not self.schemas[name].latest:
            return
        tier, from_us = self.schemas[name].tiers[0], self.retention(name).readings_from_us(self.now_us)
        text, age_us = tier.window.text, self.ages[name][tier.family]
        for (sensor_id, time_us, *_), metrics in self.truths[name].held.items():
            start_us = start_of(time_us, text)
            stays = age_us is None or start_us >= self.now_us - age_us
            if stays and from_us <= start_us and end_of(start_us, text) <= self.now_us:
                self._assert_newest(name, {(sensor_id, metric): time_us // MS * MS for metric in metrics})

    def has(self, name, event):
        if event.fault:
            return False
        truth = self.truths[name]
        return truth.kind.identity(event) in truth.accepted

    def abandon(self, name, events):
        for event in events:
            for tier in self.schemas[name].tiers:
                text = tier.window.text
                self.abandoned.add((name, text, event.sensor_id, start_of(event.time_us, text)))

    def check_left(self, name):
        """Asserts that windows left on the work list may have been collected or are not over."""
        tiers, from_us = self.schemas[name].tiers, self.retention(name).readings_from_us(self.now_us)
        for sensor_id, listed_us in self.listed(name):
            windows = [(start_of(listed_us, tier.window.text), tier.window.text) for tier in tiers]
            assert any(start_us < from_us or end_of(start_us, text) > self.now_us for start_us, text in windows), (
                f"{_shown((name, 'work list', sensor_id, listed_us))} is still there"
            )

    def check_repaired(self, name, *, whole):
        """Asserts that every window that is over, and whose raw rows must exist, equals them."""
        if whole:
            self._check_newest_of_repair(name)
        rows, from_us = self.rows(name), self.retention(name).readings_from_us(self.now_us)
        for tier in self.schemas[name].tiers:
            text = tier.window.text
            for (sensor_id, start_us), counted in self.truths[name].windows(text).items():
                row, mark = rows.get((text, sensor_id, start_us), {}), (name, text, sensor_id, start_us)
                age_us = self.ages[name][tier.family]
                stays = age_us is None or start_us >= self.now_us - age_us
                gone = not stays if whole else self._may_be_gone(mark, tier)
                if start_us < from_us or end_of(start_us, text) > self.now_us or gone:
                    continue
                right = counted.agrees(_plain(row)) and self._increases(mark, row, self._soon(name))
                excused = not whole and self._excused(mark, row)
                assert excused or right, f"{_shown(mark)} is {row} after a repair, not {counted}"


def is_number(column):
    return column not in ("window_sizes", "member") and not column.startswith("rises_")


def _plain(row):
    """Returns a row without what depends on other windows."""
    return {column: value for column, value in row.items() if not column.startswith("increase_")}


def _shown(mark):
    name, text, sensor_id, start_us = mark
    return f"{name.table}: {text} of {sensor_id} at {datetime.fromtimestamp(start_us / 1e6, UTC).isoformat()}"
