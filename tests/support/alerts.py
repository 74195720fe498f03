"""A group of sensors whose readings are watched for alerts, with its table, without Beam and without a server."""

import json
from collections.abc import Iterable, Iterator, Sequence

from pipeline.core.alerts.alert_rows import AlertRecord, parse_alert_row
from pipeline.core.alerts.evaluation import Found
from pipeline.core.alerts.group_alerts import BEGIN, AlertState, GroupAlerts, silent_part
from pipeline.core.alerts.group_tracks import GroupTracks
from pipeline.core.alerts.machine import FIRING, Value
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import SilentSensors, StoredSensors
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.rows.rows import Cell, Row
from tests.support.rows import decoded

START_US = 1_771_322_400_000_000
MINUTE_US = 60_000_000
LATENESS_US = 10 * MINUTE_US


class _Bag:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def read(self) -> Iterable[bytes]:
        return list(self.parts)

    def add(self, element: bytes) -> None:
        self.parts.append(element)

    def clear(self) -> None:
        self.parts.clear()


class WatchedGroup:
    """A table, a job with one group of sensors, and the messages that it has published."""

    def __init__(self, *rules: Rule) -> None:
        self.cells: dict[tuple[bytes, bytes, int], Cell] = {}
        self.raw: dict[tuple[str, int], float] = {}
        self.newest_us: dict[str, int] = {}  # in rows of newest readings
        self.messages: dict[str, dict[str, object]] = {}
        self.fires: dict[tuple[str, str], bool] = {}
        self.now_us = START_US
        self.reads = 0
        self.use(*rules)
        self.restart()

    def use(self, *rules: Rule) -> None:
        of_table = self._known, lambda *_: True, lambda _, newest_us: newest_us, self._stored
        self._alerts = GroupAlerts(RuleSet(rules), "table", LATENESS_US, lambda _: self.open(), *of_table)

    def restart(self) -> None:
        """A new job: its state is empty."""
        self.data: bytes | None = None
        self._bags = _Bag(), _Bag()
        self.timer_us: int | None = None
        self._take(self._alerts.process(0, BEGIN, self._state(), self.now_us))

    def read(self, sensor_id: str, *values: tuple[int, float]) -> None:
        """Readings arrive in one part, of which the raw rows are written too."""
        times, numbers = [time_us for time_us, _ in values], [number for _, number in values]
        self.raw |= {(sensor_id, time_us): number for time_us, number in values}
        for part in encoded_readings(START_US, [Readings(sensor_id, ("t",), times, numbers)]):
            self._take(self._alerts.process(0, part, self._state(), self.now_us))

    def look(self, rule: Rule, watermark_us: int) -> bytes:
        """Returns what a look for silent sensors finds."""
        until_us = watermark_us - rule.silent_for_us
        silent = {sensor_id: time_us for sensor_id, time_us in sorted(self.newest_us.items()) if time_us < until_us}
        return silent_part(SilentSensors(rule.id, watermark_us, "", None, silent))

    def tell(self, part: bytes) -> None:
        """A look's answer arrives."""
        self._take(self._alerts.process(0, part, self._state(), self.now_us))

    def pass_watermark(self, watermark_us: int) -> None:
        """The watermark passes, and with it the timer."""
        while self.timer_us is not None and self.timer_us <= watermark_us:
            at_us, self.timer_us = self.timer_us, None
            self._take(self._alerts.pass_watermark(0, at_us, self._state(), self.now_us))

    def records(self) -> Iterator[AlertRecord]:
        keys = dict.fromkeys(key for key, _, _ in self.cells)
        for row in keys:
            yield parse_alert_row(Row(row, [cell for (key, _, _), cell in self.cells.items() if key == row]))

    def open(self) -> list[AlertRecord]:
        return [record for record in self.records() if record.is_open]

    def firing(self) -> set[str]:
        return {record.sensor_id for record in self.records() if record.is_firing}

    @property
    def kept(self) -> list[bytes]:
        """The readings in the state."""
        return [part for bag in self._bags for part in bag.parts]

    @property
    def tracks(self) -> list[str]:
        return list(GroupTracks(self.data).sensors())

    def _known(self, sensor_id: str, rule: Rule, from_us: int) -> tuple[int, list[Value]]:
        self.reads += 1
        of_alert = (each.version for each in self.records() if (each.rule, each.sensor_id) == (rule.name, sensor_id))
        return max(of_alert, default=0), [
            Value(at_us, value)
            for (sensor, at_us), value in self.raw.items()
            if sensor == sensor_id >= "" and at_us >= from_us
        ]

    def _stored(self, rule: Rule, sensors: Sequence[str]) -> StoredSensors:
        newest_us = {sensor_id: self.newest_us[sensor_id] for sensor_id in sensors if sensor_id in self.newest_us}
        return StoredSensors(newest_us, {record.sensor_id for record in self.records() if record.rule == rule.name})

    def _state(self) -> AlertState:
        return AlertState(lambda: self.data, self._write, *self._bags, self._set)

    def _write(self, data: bytes) -> None:
        self.data = data

    def _set(self, at_us: int) -> None:
        self.timer_us = at_us

    def _take(self, found: Found) -> None:
        for row in map(decoded, found.rows):
            self.cells |= {(row.key, cell.qualifier, cell.timestamp_us): cell for cell in row.cells}
        for alert in found.alerts:
            content = json.loads(alert.content)
            key = content["rule"], content["sensor_id"]
            fires = content["kind"] == FIRING
            assert fires is not self.fires.get(key, False)
            self.fires[key] = fires
            self.messages[alert.id] = content
