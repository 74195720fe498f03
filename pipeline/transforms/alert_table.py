"""What the steps of alerts read in the table: the rules, the alerts of the job before, and what a rule asks for."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from google.cloud.bigtable_v2.types import RowFilter, TimestampRange

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.alert_store import read_rules
from pipeline.core.alerts.alert_rows import (
    HISTORY,
    LATELY,
    AlertRecord,
    alert_key,
    alert_range,
    parse_alert_key,
    parse_alert_row,
)
from pipeline.core.alerts.group_alerts import WindowValue, windows_part
from pipeline.core.alerts.known_values import known_values
from pipeline.core.alerts.machine import NEVER_US
from pipeline.core.alerts.newest_metadata import NewestMetadata
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import SilentSensors
from pipeline.core.alerts.stored_alerts import (
    AlertKey,
    StoredAlerts,
    StoredSensors,
    StoredValues,
    ValuesWanted,
)
from pipeline.core.notation.times import parse_time
from pipeline.core.queries.reads import RowSelection, in_batches
from pipeline.core.results.window_results import read_batch
from pipeline.core.rows.newest_row import latest_key, latest_range, parse_latest_row
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.proto.window_result_pb2 import WindowResult
from pipeline.transforms.tables import RETRY_S, Clock, TableReadingFn
from pipeline.transforms.windows_here import HERE

_RULES_EVERY_S = 30.0
_RULES_ATTEMPTS, _RULES_RETRY_S = 6, 1.0
_SECOND_US = 1_000_000
_LATELY_US = 7 * 86_400 * _SECOND_US  # Pub/Sub keeps messages for as long, unless it is told otherwise
_MOST_SILENT = 1_000  # sensors in an element
_LEAST_SWEEP_US = 10_000_000

_LOGGER = logging.getLogger(__name__)


class WatchedTable(NamedTuple):
    """A table whose readings are watched.

    Attributes:
        name: the table's name.
        schema: the table's schema.
        lateness_us: the time by which a reading may be late.
        newest_behind_us: the time by which rows of newest readings may be behind.
        max_future_us: the time by which a reading may be ahead.
        began_us: the time at which the job began.
        retention: the table's retention.
    """

    name: TableName
    schema: TableSchema
    lateness_us: int
    newest_behind_us: int
    max_future_us: int
    began_us: int
    retention: Retention


class _JobAlerts:
    """What all steps of a job in this process read together."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.rules: RuleSet | None = None
        self.read_s = 0.0
        self.stored: dict[int, StoredAlerts] | None = None

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
            ServerProblem: the table can't be read, or has older rules than these.
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
        raise ServerProblem(
            f"table {self._table.name}: its rules of alerts are older than those that the job has; apply them again"
        )

    def _read_rules(self, shared: _JobAlerts, least: int) -> None:
        before = shared.rules
        try:
            found = read_rules(self._open(), self._table.schema)
            # Older ones are those of a cluster that is behind.
            if before is None or found.number > before.number:
                shared.rules = found
        except ServerProblem as problem:
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
        return shared.stored.get(group, StoredAlerts([], {}))

    def _stored(self) -> dict[int, StoredAlerts]:
        open_alerts: dict[int, list[AlertRecord]] = {}
        over: dict[int, dict[AlertKey, int]] = {}
        unsure: dict[int, list[AlertRecord]] = {}
        lately_us = self._table.began_us - _LATELY_US
        for record in _alerts_of(self._read(RowSelection(alert_range(), LATELY))):
            group = group_of(record.sensor_id.encode(), self._groups)
            last_us = record.transitions[-1].time_us if record.transitions else NEVER_US
            if record.is_open:
                open_alerts.setdefault(group, []).append(record)
            elif last_us >= lately_us:
                over.setdefault(group, {})[record.rule, record.sensor_id] = last_us
            if HERE.after_crash and (record.is_open or max(last_us, record.told_us) >= lately_us):
                unsure.setdefault(group, []).append(record)
        groups = open_alerts.keys() | over.keys() | unsure.keys()
        found = ((open_alerts.get(group, []), over.get(group, {}), unsure.get(group, [])) for group in groups)
        return {group: StoredAlerts(*each) for group, each in zip(groups, found, strict=True)}

    def records(self, keys: Sequence[AlertKey]) -> dict[AlertKey, AlertRecord]:
        """Returns the alerts that have rows, with one request for hundreds."""
        rows = self._rows_of((alert_key(*key) for key in keys), LATELY)
        return {(record.rule, record.sensor_id): record for record in _alerts_of(rows)}

    def values(self, wanted: Sequence[ValuesWanted]) -> list[StoredValues]:
        """Returns the answer to each question, with a request for many."""
        return known_values(self._table.schema, self._table.retention, self._read, wanted, self._now_us())

    def window_values(self, batch: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the statistics that rules look at, by group, of a batch of results."""
        rules = self.rules().on_windows
        found: dict[int, list[WindowValue]] = {}
        for serialized in read_batch(batch) if rules else ():
            result = WindowResult.FromString(serialized)
            for rule in rules:
                if rule.tier == result.tier and result.kind != "early" and rule.matches(result.sensor_id):
                    value = _statistic(result, str(rule.metric), str(rule.of))
                    if value is not None:
                        group = group_of(result.sensor_id.encode(), self._groups)
                        of = WindowValue(result.sensor_id, rule.id, parse_time(result.window_end), value)
                        found.setdefault(group, []).append(of)
        for group, values in found.items():
            yield group, windows_part(values)

    def _now_us(self) -> int:
        return int(self._clock() * 1_000_000)

    def fits(self, sensor_id: str, rule: Rule) -> bool:
        """Returns whether the newest metadata of a sensor is what the rule asks for."""
        return not rule.metadata or rule.fits(self._metadata.of(sensor_id))

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> list[str]:
        """Returns the sensors that the rule asks for, given the times of their newest readings."""
        if rule.metadata:
            self._metadata.learn(newest_us)
        return [sensor_id for sensor_id in newest_us if self.fits(sensor_id, rule)]

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

            for row in self._open().read(latest_range(_prefix(rule.sensors)), _older(family, until_us)):
                try:
                    record = parse_latest_row(row)
                except ValueError:
                    continue
                sensor_id, newest_us = record.sensor_id, record.event_time_us
                # The filter compares whole milliseconds.
                if newest_us < until_us and rule.matches(sensor_id):
                    group = group_of(sensor_id.encode(), self._groups)
                    silent = found.setdefault(group, none_yet())
                    silent.newest_us[sensor_id] = newest_us
                    if len(silent.newest_us) == _MOST_SILENT:
                        yield group, silent._replace(until=sensor_id)
                        found[group] = none_yet(after=sensor_id)
            for group in told:
                found.setdefault(group, none_yet())
            yield from found.items()

    def sensors(self, rule: Rule, sensors: Sequence[str]) -> StoredSensors:
        """Returns what the table stores of sensors and their alerts of a rule."""
        newest_us, family = dict[str, int](), self._table.schema.latest
        for row in self._rows_of(map(latest_key, sensors), CellSelection((family,), versions=1)) if family else ():
            with suppress(ValueError):  # another program's row
                record = parse_latest_row(row)
                newest_us[record.sensor_id] = record.event_time_us
        alerts = (alert_key(rule.name, sensor_id) for sensor_id in sensors)
        rows = self._rows_of(alerts, HISTORY._replace(keys_only=True))
        return StoredSensors(newest_us, {parse_alert_key(row.key)[1] for row in rows})

    def _rows_of(self, keys: Iterable[bytes], cells: CellSelection) -> Iterator[Row]:
        for ranges in in_batches(KeyRange(key, key + b"\x00") for key in keys):
            yield from self._read(RowSelection(ranges, cells))


def _alerts_of(rows: Iterable[Row]) -> Iterator[AlertRecord]:
    for row in rows:
        try:
            yield parse_alert_row(row)
        except ValueError as error:
            _LOGGER.warning("Row %r is not one of an alert: %s", row.key, error)


def _statistic(result: WindowResult, metric: str, name: str) -> float | None:
    for of_metric in result.metrics:
        if of_metric.metric == metric:
            if name == "count":
                return float(of_metric.count)
            return next((each.value for each in of_metric.statistics if each.name == name), None)
    return None


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
