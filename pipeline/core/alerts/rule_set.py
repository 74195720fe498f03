"""Rules compiled for readings: which of them a sensor's readings concern, found once for each kind of sensor."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.alerts.machine import Value
from pipeline.core.alerts.rules import Rule
from pipeline.core.panes.grouped_readings import Readings, read_group_values

_MOST_KNOWN = 200_000  # sensors whose rules are known without asking their globs


class MetricCheck(NamedTuple):
    """The rules on one metric of a sensor.

    Attributes:
        column: the metric's place among the metrics of its events.
        low: the lower end of the range in which no rule fires.
        high: the upper end of that range.
        rules: the rules.
    """

    column: int
    low: float
    high: float
    rules: tuple[Rule, ...]


class RuleSet:
    """The rules of a table.

    Args:
        rules: the rules.
        number: the time at which rules were stored in µs, which grows whenever they are.
        mutes: the times in µs until which messages of a rule wait, by its name and a sensor; for all, the sensor is "".

    Attributes:
        rules: the rules.
        number: see above.
        by_name: the rules by their names.
        by_id: the rules by their ids.
        on_readings: the rules on readings.
        on_windows: the rules on statistics of windows.
        on_silence: the rules on silence.
    """

    def __init__(
        self, rules: Sequence[Rule] = (), number: int = 0, mutes: Mapping[tuple[str, str], int] | None = None
    ) -> None:
        self.rules, self.number, self.mutes = tuple(rules), number, mutes or {}
        self.by_name = {rule.name: rule for rule in rules}
        self.by_id = {rule.id: rule for rule in rules}
        self.on_readings = tuple(rule for rule in rules if rule.metric is not None and rule.of is None)
        self.on_windows = tuple(rule for rule in rules if rule.of is not None)
        self.on_silence = tuple(rule for rule in rules if rule.silent_for_us)
        self._known: dict[str, _ByMetrics] = {}
        self._kinds: dict[tuple[int, ...], _ByMetrics] = {}  # by the places of the rules
        everywhere = all(rule.sensors == "*" for rule in self.on_readings)
        self._of_all = _ByMetrics(self.on_readings) if everywhere else None

    def waits_until_us(self, rule: Rule, sensor_id: str, now_us: int) -> int | None:
        """Returns the time until which messages about a sensor wait, muted or in quiet hours; None if they do not."""
        ends_us = [rule.quiet_until_us(now_us)] if rule.quiet else []
        if self.mutes:
            ends_us += [self.mutes.get((rule.name, sensor)) for sensor in ("", sensor_id)]
        return max((each for each in ends_us if each is not None and each > now_us), default=None)

    def checks(self, sensor_id: str, metrics: tuple[str, ...]) -> tuple[MetricCheck, ...]:
        """Returns what to check in events of a sensor that have these metrics."""
        of_sensor = self._known.get(sensor_id) if self._of_all is None else self._of_all
        if of_sensor is None:
            places = tuple(place for place, rule in enumerate(self.on_readings) if rule.matches(sensor_id))
            of_sensor = self._kinds.get(places)
            if of_sensor is None:
                of_sensor = self._kinds[places] = _ByMetrics([self.on_readings[place] for place in places])
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[sensor_id] = of_sensor
        return of_sensor[metrics]

    def may_fire(self, part: bytes) -> bool:
        """Returns whether a rule may fire for one of the encoded readings."""
        for sensor_id, metrics, values in read_group_values(part):
            checks = self.checks(sensor_id, metrics)
            if checks and may_fire(checks, len(metrics), values):
                return True
        return False

    def values_of(self, readings: Readings) -> dict[str, list[Value]]:
        """Returns the values that each rule looks at, by the rule's name."""
        metrics, times, values = readings.metrics, readings.times, readings.values
        width = len(metrics)
        times_us = [time_of_key(time) for time in times]
        found: dict[str, list[Value]] = {}
        for column, _, _, rules in self.checks(readings.sensor_id, metrics):
            of_metric = [Value(*pair) for pair in zip(times_us, values[column::width], strict=True)]
            found.update((rule.name, of_metric) for rule in rules)
        return found


def may_fire(checks: Sequence[MetricCheck], width: int, values: Sequence[float]) -> bool:
    """Returns whether any value of events with so many metrics may be one that a rule fires for."""
    if len(values) == width:
        for column, low, high, _ in checks:  # noqa: SIM110 (any() would take twice as long)
            if not low <= values[column] <= high:
                return True
        return False
    for column, low, high, _ in checks:
        of_metric = values[column::width]
        if min(of_metric) < low or max(of_metric) > high:
            return True
    return False


class _ByMetrics(dict[tuple[str, ...], tuple[MetricCheck, ...]]):
    """The checks of sensors that have the same rules, by the metrics of an event."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self._rules = rules

    def __missing__(self, metrics: tuple[str, ...]) -> tuple[MetricCheck, ...]:
        found = self[metrics] = tuple(_checks(self._rules, metrics))
        return found


def _checks(rules: Sequence[Rule], metrics: tuple[str, ...]) -> list[MetricCheck]:
    checks = []
    for column, metric in enumerate(metrics):
        of_metric = tuple(rule for rule in rules if rule.metric == metric)
        if of_metric:
            # A rule that follows readings looks at all of them.
            nothing = math.inf, -math.inf
            ranges = [nothing if rule.follows or not rule.condition else rule.condition.calm for rule in of_metric]
            checks.append(
                MetricCheck(column, max(low for low, _ in ranges), min(high for _, high in ranges), of_metric)
            )
    return checks
