"""Reads a table's alerts together with its rules, which tell the units of values and the names that there are."""

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain

from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables.alert_store import read_rules
from pipeline.core.alerts.alert_rows import AlertRecord, ValueFacts
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.notation.text import shown

_KNOWN_S = 10.0


class KnownRules:
    """The rules of a table, read and parsed some ten seconds apart: they may name a hundred thousand sensors."""

    def __init__(self) -> None:
        self._known: tuple[float, RuleSet] | None = None

    def __call__(self, table: SensorTable) -> RuleSet:
        """Returns the rules that the table stores, or stored ten seconds ago. Raises ServerError."""
        known, now_s = self._known, time.monotonic()  # several threads may read at once, and each is right
        if known is None or now_s > known[0] + _KNOWN_S:
            known = self._known = now_s, read_rules(table.rows, table.schema)
        return known[1]


class AlertReader:
    """Reads the alerts of a table, and its rules. Methods raise ServerError if the server refuses.

    Args:
        table: the table.
        known: the rules that several readers share.
    """

    def __init__(self, table: SensorTable, known: KnownRules | None = None) -> None:
        self._table = table
        self._known = known or KnownRules()

    @cached_property
    def rules(self) -> RuleSet:
        """The rules that the table stores."""
        return self._known(self._table)

    @cached_property
    def values(self) -> Mapping[str, ValueFacts]:
        """The units and labels of the values that rules look at, by rule. Reads no rules if the schema has neither."""
        schema = self._table.schema
        rules = self.rules.rules if schema.units or schema.labels else ()
        return {rule.name: ValueFacts(rule.unit_in(schema), rule.label_in(schema)) for rule in rules}

    def records(
        self, rule: str | None = None, sensor_id: str | None = None, *, lately: bool = False
    ) -> Iterator[AlertRecord]:
        """Returns alerts as :meth:`~pipeline.cloud.reading.reader.SensorTable.alerts` does.

        Args:
            rule: the name of the only rule; None for all.
            sensor_id: the only sensor, whose alerts of the rules that the table stores are read one by one.
            lately: whether to read the last transitions only.

        Raises:
            ValueError: the table stores no rule of that name, and has no alert of one.
        """
        if sensor_id is None:
            found = self._table.alerts(rule, recent=lately)
        else:
            rules = self.rules.by_name if rule is None else [rule]
            found = self._table.alerts_of(sensor_id, rules, recent=lately)
        first = next(found, None)
        if first is not None:
            return chain([first], found)
        if rule is not None and not any(self._table.alerts(rule)):
            stored = read_rules(self._table.rows, self._table.schema).by_name
            if rule not in stored:
                names = ", ".join(stored) or "none"
                raise ValueError(f"the table has no rule {shown(rule)} and no alert of one; its rules: {names}")
        return iter(())
