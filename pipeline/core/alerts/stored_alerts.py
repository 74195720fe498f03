"""What the evaluation of alerts asks of the table: rows of alerts, and values that the step does not keep."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from pipeline.core.alerts.alert_rows import AlertRecord
from pipeline.core.alerts.machine import Value
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule

FOREVER_US = 1 << 62  # after all times

AlertKey = tuple[str, str]
"""The name of a rule, and a sensor."""


class StoredAlerts(NamedTuple):
    """The alerts of a group by the table when the job begins.

    Attributes:
        open: the alerts that fire, or are about to.
        over: the times of the last transitions of others that were over lately: late readings may change them.
        unsure: alerts whose last message may not have been published, because the process before was killed.
    """

    open: Sequence[AlertRecord]
    over: Mapping[AlertKey, int]
    unsure: Sequence[AlertRecord] = ()


class ValuesWanted(NamedTuple):
    """A question for the values of a sensor.

    Attributes:
        rule: the rule that looks at them.
        sensor_id: the sensor.
        from_us: the least time.
        until_us: the end by which windows have to be over; readings count whatever their time.
    """

    rule: Rule
    sensor_id: str
    from_us: int
    until_us: int


class StoredValues(NamedTuple):
    """The values of a sensor.

    Attributes:
        from_us: a time from which no value is missing; :data:`FOREVER_US` if the table can't tell.
        values: the values, in no order.
    """

    from_us: int
    values: Sequence[Value]


class StoredSensors(NamedTuple):
    """What the table stores of some sensors.

    Attributes:
        newest_us: the times of their newest readings.
        with_alerts: those that have a row of the alert.
    """

    newest_us: Mapping[str, int]
    with_alerts: Collection[str]


class AlertTable(Protocol):
    """A table, as the evaluation of alerts reads it."""

    def rules(self, least: int = 0) -> RuleSet:
        """Returns the rules, whose number is at least this one."""

    def restored(self, group: int) -> StoredAlerts:
        """Returns the alerts of a group when the job begins."""

    def records(self, keys: Sequence[AlertKey]) -> Mapping[AlertKey, AlertRecord]:
        """Returns the alerts that have rows."""

    def values(self, wanted: Sequence[ValuesWanted]) -> Sequence[StoredValues]:
        """Returns the answer to each question."""

    def fits(self, sensor_id: str, rule: Rule) -> bool:
        """Returns whether a sensor's metadata is what a rule asks for."""

    def fitting(self, rule: Rule, newest_us: Mapping[str, int]) -> Collection[str]:
        """Returns the sensors whose metadata is what a rule asks for, given the times of their newest readings."""

    def sensors(self, rule: Rule, sensors: Sequence[str]) -> StoredSensors:
        """Returns what the table stores of sensors and their alerts of a rule."""
