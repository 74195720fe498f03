"""What the steps of alerts read in the table: the rules, the alerts of the job before, and what a rule asks for."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from threading import Lock
from typing import NamedTuple

from google.cloud.bigtable_v2.types import RowFilter, TimestampRange

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.alert_store import read_rules
from pipeline.core.alerts.alert_rows import (
    LATELY,
    AlertRecord,
    alert_key,
    alert_range,
    parse_alert_key,
    parse_alert_row,
)
from pipeline.core.alerts.group_alerts import (
    AlertKey,
    SensorMetric,
    SilentSensors,
    StoredAlerts,
    WindowValue,
    windows_part,
)
from pipeline.core.alerts.machine import Value
from pipeline.core.alerts.newest_metadata import NewestMetadata
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.events import Query, events_of, selections_of
from pipeline.core.queries.reads import RowSelection, RowsTogether, in_batches
from pipeline.core.results.window_results import read_batch
from pipeline.core.rows.aggregate_rows import aggregate_range, parse_aggregate_key, version_us
from pipeline.core.rows.newest_row import LatestRecord, latest_key, latest_range, parse_latest_key, parse_latest_row
from pipeline.core.rows.records import RawRecord
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import qualifier_of
from pipeline.proto.window_result_pb2 import WindowResult
from pipeline.transforms.tables import RETRY_S, Clock, TableReadingFn
from pipeline.transforms.windows_here import HERE

_RULES_EVERY_S = 30.0
_RULES_ATTEMPTS, _RULES_RETRY_S = 6, 1.0
_SECOND_US = 1_000_000
_LATELY_US = 7 * 86_400_000_000  # Pub/Sub keeps messages for as long, unless it is told otherwise
_MOST_TOGETHER = 120  # events of a sensor that are read together with those of others
_MOST_SILENT = 1_000  # sensors in an element
_LEAST_SWEEP_US = 10_000_000

_LOGGER = logging.getLogger(__name__)


class WatchedTable(NamedTuple):
    """A table whose readings are watched.

    Attributes:
        name: the table's name.
        schema: the table's schema.
        newest_behind_us: the time by which rows of newest readings may be behind.
        max_future_us: the time by which a reading may be ahead.
        began_us: the time at which the job began.
    """

    name: TableName
    schema: TableSchema
    newest_behind_us: int
    max_future_us: int
    began_us: int


class _JobAlerts:
    """What all steps of a job in this process read together."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.rules: RuleSet | None = None
        self.read_s = 0.0
        self.stored: dict[int, StoredAlerts] | None = None
        self.sent = set[str]()  # of the sensors that rules name one by one

    def has_rules(self, least: int) -> bool:
        """Returns whether rules were read lately that have at least this number."""
        found = self.rules
        return found is not None and found.number >= least and time.monotonic() < self.read_s + _RULES_EVERY_S


_shared: defaultdict[tuple[TableName, int], _JobAlerts] = defaultdict(_JobAlerts)


def may_watch_windows(name: TableName, began_us: int) -> bool:
    """Returns whether a job's rules may be on windows: whether they are, or this process has not read them lately."""
    found = _shared[name, began_us]
    return not found.has_rules(0) or bool(found.rules and found.rules.on_windows)


class AlertTableFn(TableReadingFn):
    """Reads what alerts need.

    Args:
        table: the table.
        groups: the number of groups of sensors.
        clock: a function that returns the current time.
    """

    def __init__(self, table: WatchedTable, groups: int, clock: Clock = time.time) -> None:
        super().__init__(table.name, RETRY_S)
        self._table, self._groups, self._clock = table, groups, clock

    def setup(self) -> None:
        super().setup()
        self._of_job = _shared[self._table.name, self._table.began_us]
        self._metadata = NewestMetadata(self._table.schema, self._read)

    def rules(self, least: int = 0) -> RuleSet:
        """Returns the table's rules, which are read every 30 seconds. The same rules are the same object.

        Args:
            least: the least number of the rules. If those that were read are older, they are read again at once.

        Raises:
            ServerError: the table can't be read, or has older rules than these.
        """
        shared = self._of_job
        for attempt in range(_RULES_ATTEMPTS):
            if not shared.has_rules(least):
                if attempt:
                    time.sleep(_RULES_RETRY_S)
                with shared.lock:
                    if not shared.has_rules(least):
                        self._read_rules(shared, least)
            if shared.rules is not None and shared.rules.number >= least:
                return shared.rules
        raise ServerError(
            f"table {self._table.name}: its rules of alerts are older than those that the job has; apply them again"
        )

    def _read_rules(self, shared: _JobAlerts, least: int) -> None:
        before = shared.rules
        try:
            found = read_rules(self._open(), self._table.schema)
            # Older ones are those of a cluster that is behind.
            if before is None or found.number > before.number:
                shared.rules = found
            elif found.number == before.number:
                before.mutes = found.mutes
        except ServerError as problem:
            if before is None or before.number < least:
                raise
            _LOGGER.warning("The rules of alerts stay as they are: %s", problem)
        shared.read_s = time.monotonic()

    def restored(self, group: int) -> StoredAlerts:
        """Returns the alerts of a group when the job begins."""
        shared = self._of_job
        with shared.lock:
            if shared.stored is None:
                shared.stored = self._stored()
        return shared.stored.get(group, StoredAlerts([], []))

    def _stored(self) -> dict[int, StoredAlerts]:
        found, lately_us = dict[int, StoredAlerts](), self._table.began_us - _LATELY_US
        for record in _alerts_of(self._read(RowSelection(alert_range(), LATELY))):
            is_unsure = HERE.after_crash and (record.is_open or record.last.time_us >= lately_us)
            if record.is_open or is_unsure:
                stored = found.setdefault(self._group_of(record.sensor_id), StoredAlerts([], []))
                stored.open.extend([record] * record.is_open)
                stored.unsure.extend([record] * is_unsure)
        return found

    def _group_of(self, sensor_id: str) -> int:
        return group_of(sensor_id.encode(), self._groups)

    def records(self, keys: Sequence[AlertKey]) -> dict[AlertKey, AlertRecord]:
        """Returns the alerts that have rows, with one request for hundreds."""
        rows = self._rows_of((alert_key(*key) for key in keys), LATELY)
        return {(record.rule, record.sensor_id): record for record in _alerts_of(rows)}

    def newest(self, came: Mapping[SensorMetric, Sequence[Value]]) -> dict[SensorMetric, Value]:
        """Returns the newest reading of each sensor beside those that came, by raw rows.

        If keys do not locate sensors, it is the newest of all, by rows of newest readings.
        """
        found, schema = dict[SensorMetric, Value](), self._table.schema
        if not schema.finds_sensors and schema.latest is not None:
            cells = CellSelection((schema.latest,), versions=1)
            for record in self._newest_rows({sensor_id for sensor_id, _ in came}, cells):
                found |= {(record.sensor_id, name): Value(*at) for name, at in record.readings.items()}
        for metric in {metric for _, metric in came} if schema.finds_sensors else ():
            for sensor_id, events in self._newest_of(
                metric, {sensor_id: values for (sensor_id, each), values in came.items() if each == metric}
            ):
                own = {value.time_us // 1000 for value in came[sensor_id, metric]}
                others = (event for event in events if event.event_time_us // 1000 not in own)
                event = next((event for event in others if metric in event.readings), None)
                if event is not None:
                    found[sensor_id, metric] = Value(event.event_time_us, event.readings[metric])
        return found

    def _newest_of(self, metric: str, came: Mapping[str, Sequence[Value]]) -> Iterator[tuple[str, Iterator[RawRecord]]]:
        """Yields the newest events of sensors. If a sensor has few, they are read together with those of others."""
        schema, together, queries = self._table.schema, RowsTogether(self._read), dict[str, Query]()
        few_from_us = self._now_us() - _MOST_TOGETHER * (schema.rate.every_us if schema.rate else _SECOND_US)
        for sensor_id, values in came.items():
            limit = None if (first_us := min(values).time_us) > few_from_us else len(values) + 1
            queries[sensor_id] = Query(first_us, metrics=(metric,), limit=limit)
        few = {each: selections_of(schema, each, query) for each, query in queries.items() if query.limit is None}
        for some in chain(together.batches(few), ([sensor_id] for sensor_id in came)):
            for sensor_id in some:
                if (query := queries.pop(sensor_id, None)) is not None:
                    yield sensor_id, events_of(schema, together, sensor_id, query, _left_out)

    def newer_windows(self, rule: Rule, newest: Mapping[str, Value]) -> set[str]:
        """Returns the sensors of which the table has a newer window that is over, or a newer version of this one."""
        window, schema = rule.window, self._table.schema
        tier = None if window is None else schema.tier(window)
        if window is None or tier is None:
            return set()
        column, now_us, found = qualifier_of(str(rule.of), str(rule.metric)).encode(), self._now_us(), set[str]()
        cells = CellSelection((tier.family,), (column,), versions=1)
        over_us = window.start_of(now_us)  # before this, windows start that are over
        ranges = (
            aggregate_range(window, sensor_id, window.start_of(value.time_us - 1), over_us)
            for sensor_id, value in newest.items()
            if value.time_us <= over_us
        )
        for some in in_batches(ranges):
            for row in self._read(RowSelection(some, cells)):
                key = parse_aggregate_key(window, row.key)
                value, end_us = newest[key.sensor_id], window.end_of(key.start_us)
                version_of_row = max(cell.timestamp_us for cell in row.cells)
                if end_us > value.time_us or version_of_row > version_us(key.start_us, value.version):
                    found.add(key.sensor_id)
        return found

    def unchanged_since(self, rule: Rule, sensor_id: str, value: float, before_us: int) -> int:
        """Returns the time since which a sensor's readings before a time have not moved from a value."""
        since_us, metric, schema = before_us, str(rule.metric), self._table.schema
        query = Query(before_us - rule.unchanged_for_us, before_us, metrics=(metric,))
        events = events_of(schema, self._read, sensor_id, query, _left_out) if schema.finds_sensors else ()
        for event in events:
            if abs(event.readings.get(metric, value) - value) > rule.tolerance:
                break
            since_us = event.event_time_us
        return since_us

    def window_values(self, batch: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the statistics that rules look at, by group, of a batch of results."""
        rules = self.rules().on_windows
        found: dict[int, list[WindowValue]] = {}
        for serialized in read_batch(batch) if rules else ():
            result = WindowResult.FromString(serialized)
            for rule in rules:
                if rule.tier == result.tier and result.kind != "early" and rule.matches(result.sensor_id):
                    value = self._value_of(rule, result)
                    if value is not None:
                        of_group = found.setdefault(self._group_of(result.sensor_id), [])
                        of_group.append(WindowValue(result.sensor_id, rule.id, value))
        for group, values in found.items():
            yield group, windows_part(values)

    def _value_of(self, rule: Rule, result: WindowResult) -> Value | None:
        """Returns what a rule looks at in a window; None if the window lacks data for it."""
        for of_metric in result.metrics:
            if of_metric.metric == rule.metric:
                value = next((each.value for each in of_metric.statistics if each.name == rule.of), None)
                value = float(of_metric.count) if rule.of == "count" else value
                share = of_metric.coverage or None
                if value is None or of_metric.count < rule.min_count or (share or 0.0) < rule.min_coverage:
                    return None
                return Value(parse_time(result.window_end), value, result.version, of_metric.count, share)
        return None

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> list[str]:
        """Returns the sensors that the rule asks for, given the times of their newest readings."""
        if not rule.metadata:
            return list(newest_us)
        self._metadata.learn(newest_us)
        return [sensor_id for sensor_id in newest_us if rule.fits(self._metadata.of(sensor_id))]

    def sweep_every_us(self) -> int:
        """Returns the time between two looks for silent sensors: a tenth of the shortest silence."""
        return max(self.shortest_silence_us() // 10, _LEAST_SWEEP_US)

    def shortest_silence_us(self) -> int:
        """Returns the shortest silence that a rule is about; 0 if none is on silence."""
        return min((rule.silent_for_us for rule in self.rules().on_silence), default=0)

    def silent(self, watermark_us: int, told: Iterable[int]) -> Iterator[tuple[int, SilentSensors]]:
        """Yields all silent sensors, by group and rule.

        The server sends the rows of newest readings of these sensors alone.

        Args:
            watermark_us: the time by which they are silent.
            told: groups that need to know if no sensor of theirs is silent.
        """
        family = self._table.schema.latest
        if family is None:
            return
        for rule in self.rules().on_silence:
            until_us = watermark_us - rule.silent_for_us - self._table.newest_behind_us
            found: dict[int, SilentSensors] = {}

            def none_yet(rule: Rule = rule, after: str = "") -> SilentSensors:
                return SilentSensors(rule.id, watermark_us, after, None, {})

            for sensor_id, newest_us in self._silent_under(rule, family, until_us):
                group = self._group_of(sensor_id)
                silent = found.setdefault(group, none_yet())
                silent.newest_us[sensor_id] = newest_us
                if len(silent.newest_us) == _MOST_SILENT:
                    yield group, silent._replace(until=sensor_id)
                    found[group] = none_yet(after=sensor_id)
            for group in told:
                found.setdefault(group, none_yet())
            yield from found.items()

    def _silent_under(self, rule: Rule, family: str, until_us: int) -> Iterator[tuple[str, int | None]]:
        """Yields the sensors without a reading since a time, in order, with their newest; None if they never sent."""
        older, reader, known = _older(family, until_us), self._open(), self._of_job.sent
        if isinstance(rule.sensors, str):
            rows = reader.read(latest_range(_prefix(rule.sensors)), older)
        else:
            unknown = [sensor_id for sensor_id in rule.expected if sensor_id not in known]
            keys = CellSelection((family,), keys_only=True, versions=1)
            known |= {parse_latest_key(row.key) for row in self._rows_of(map(latest_key, unknown), keys)}
            ranges = in_batches(KeyRange(key, key + b"\x00") for key in map(latest_key, rule.expected))
            rows = chain.from_iterable(reader.read(some, older) for some in ranges)
        silent: dict[str, int | None] = {sensor_id: None for sensor_id in rule.expected if sensor_id not in known}
        for row in rows:
            with suppress(ValueError):  # another program's row
                record = parse_latest_row(row)
                # The filter compares whole milliseconds.
                if record.event_time_us < until_us and rule.matches(record.sensor_id):
                    if rule.expected:
                        silent[record.sensor_id] = record.event_time_us
                    else:
                        yield record.sensor_id, record.event_time_us
        yield from sorted(silent.items())

    def stored(self, rule: Rule, sensors: Sequence[str]) -> tuple[dict[str, int], set[str]]:
        """Returns the times of the newest readings of sensors, and those sensors that have a row of the alert."""
        family = self._table.schema.latest
        cells = CellSelection((family,), versions=1) if family else None
        newest_us = {each.sensor_id: each.event_time_us for each in self._newest_rows(sensors, cells)}
        alerts = (alert_key(rule.name, sensor_id) for sensor_id in sensors)
        return newest_us, {parse_alert_key(row.key)[1] for row in self._rows_of(alerts, LATELY)}

    def _newest_rows(self, sensors: Iterable[str], cells: CellSelection | None) -> Iterator[LatestRecord]:
        for row in self._rows_of(map(latest_key, sensors), cells) if cells else ():
            with suppress(ValueError):  # another program's row
                yield parse_latest_row(row)

    def _rows_of(self, keys: Iterable[bytes], cells: CellSelection) -> Iterator[Row]:
        for ranges in in_batches(KeyRange(key, key + b"\x00") for key in keys):
            yield from self._read(RowSelection(ranges, cells))


def _alerts_of(rows: Iterable[Row]) -> Iterator[AlertRecord]:
    for row in rows:
        try:
            yield parse_alert_row(row)
        except ValueError as error:
            _LOGGER.warning("Row %r is not one of an alert: %s", row.key, error)


def _left_out(_: object) -> None:
    """Leaves out a row that the schema does not write."""


def _prefix(glob: str) -> str:
    """Returns what all ids begin with that match a glob."""
    ends = [glob.index(mark) for mark in "*?[" if mark in glob]
    return glob[: min(ends)] if ends else glob


def _older(family: str, until_us: int) -> RowFilter:
    """Returns a filter that passes rows without a cell since a time: the newest cell of each column."""
    of_family = RowFilter(family_name_regex_filter=family)
    since = RowFilter(timestamp_range_filter=TimestampRange(start_timestamp_micros=max(0, until_us - until_us % 1000)))
    newest = RowFilter(chain=RowFilter.Chain(filters=[of_family, RowFilter(cells_per_column_limit_filter=1)]))
    recent = RowFilter(chain=RowFilter.Chain(filters=[of_family, since, RowFilter(cells_per_row_limit_filter=1)]))
    nothing = RowFilter(block_all_filter=True)
    return RowFilter(condition=RowFilter.Condition(predicate_filter=recent, true_filter=nothing, false_filter=newest))
