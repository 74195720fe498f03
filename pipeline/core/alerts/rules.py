"""Parses the rules of alerts, which are written in TOML, and checks them against a table's schema."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import translate
from functools import cached_property
from typing import Any

from pipeline.core.alerts.conditions import KEYS, AlertCondition, condition_of, written
from pipeline.core.notation.documents import parse_toml
from pipeline.core.notation.durations import format_duration, parse_duration
from pipeline.core.notation.text import shown
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import statistic
from pipeline.core.windows import parse_window

MAX_RULES = 100
MAX_BYTES = 100_000  # of the text that a table stores
RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

_SELECTS = ("name", "sensors", "metadata", "severity")
_OF_METRIC = ("metric", "of", "tier", "for", *KEYS)
_RULE_KEYS = (*_SELECTS, *_OF_METRIC, "silent_for")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_SEVERITY = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_GLOB = re.compile(r"[!-\"$-~]{1,256}")  # what a sensor id may contain
_TEXT = re.compile(r"[ -~]{1,128}")
_MICROSECOND = timedelta(microseconds=1)
_LEAST_SILENCE = timedelta(minutes=1)
_LONGEST = timedelta(days=365)


class RulesError(ValueError):
    """Rules that are not valid. ``str()`` is a line for each problem, which names the file and the rule."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True)
class Rule:
    """A rule of an alert: on a metric's readings, on a statistic of its windows, or on silence.

    Args:
        name: the name, unique in a table.
        sensors: a glob of sensor ids.
        metadata: names of metadata with the values that a sensor's newest metadata has to have.
        severity: a text for whoever receives the alert.
        metric: the metric; None for a rule on silence.
        condition: the condition on the values; None for a rule on silence.
        for_us: the event time for which the condition has to hold.
        of: the statistic of windows; None for a rule on readings.
        tier: the tier of the windows; None for a rule on readings.
        silent_for_us: the event time without a reading; zero for the other rules.
        gone: whether the rule was changed or removed, so that only the name is known.
    """

    name: str
    sensors: str = "*"
    metadata: tuple[tuple[str, str], ...] = ()
    severity: str = "warning"
    metric: str | None = None
    condition: AlertCondition | None = None
    for_us: int = 0
    of: str | None = None
    tier: str | None = None
    silent_for_us: int = 0
    gone: bool = False

    @cached_property
    def revision(self) -> str:
        """A text that differs if the rule fires for anything else, whatever its severity; empty if it is gone."""
        if self.gone:
            return ""
        condition = self.condition
        parts = (
            self.name,
            self.sensors,
            self.metadata,
            self.metric,
            condition and (condition.kind, condition.low, condition.high, condition.clears),
            self.for_us,
            self.of,
            self.tier,
            self.silent_for_us,
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    @cached_property
    def id(self) -> str:
        """The name and the revision."""
        return f"{self.name}@{self.revision}"

    @cached_property
    def _sensors(self) -> re.Pattern[str]:
        return re.compile(translate(self.sensors))

    def matches(self, sensor_id: str) -> bool:
        """Returns whether the sensor's id matches the rule's glob. Its metadata may still differ."""
        return self.sensors == "*" or self._sensors.match(sensor_id) is not None

    def fits(self, metadata: Mapping[str, str]) -> bool:
        """Returns whether a sensor's metadata is what the rule asks for."""
        return all(metadata.get(name) == value for name, value in self.metadata)

    @property
    def summary(self) -> str:
        """The condition in a few words."""
        if self.gone:
            return "the rule was changed or removed"
        if self.silent_for_us:
            return f"silent for {format_duration(timedelta(microseconds=self.silent_for_us))}"
        what = self.metric if self.of is None else f"{self.of} of {self.metric} in {self.tier}"
        lasting = f" for {format_duration(timedelta(microseconds=self.for_us))}" if self.for_us else ""
        return f"{what} {self.condition}{lasting}"


def parse_rules(text: str, source: str, schema: TableSchema) -> tuple[Rule, ...]:
    """Parses rules.

    Args:
        text: the TOML.
        source: the name of the file, for problems.
        schema: the schema of the table that the rules are for.

    Raises:
        RulesError: a line for each rule that is not valid.
    """
    if len(text.encode()) > MAX_BYTES:
        raise RulesError([f"{source}: is larger than {MAX_BYTES // 1000} kB"])
    try:
        document = parse_toml(text)
    except ValueError as error:
        raise RulesError([f"{source}: is not TOML: {error}"]) from None
    problems = [
        f"{source}: there is no key {shown(key)}; rules begin with [[rule]]" for key in document if key != "rule"
    ]
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise RulesError([*problems, f"{source}: rules begin with [[rule]]"])
    if len(tables) > MAX_RULES:
        raise RulesError([*problems, f"{source}: has {len(tables)} rules, and a table has {MAX_RULES} at most"])
    rules = []
    for number, table in enumerate(tables, 1):
        name = table.get("name")
        try:
            rules.append(_rule(table, schema))
        except ValueError as error:
            which = name if isinstance(name, str) and RULE_NAME.fullmatch(name) else number
            problems.append(f"{source}: rule {which}: {error}")
    for name, count in Counter(rule.name for rule in rules).items():
        if count > 1:
            problems.append(f"{source}: rule {name}: {count} rules have this name; the rows of their alerts would mix")
    if problems:
        raise RulesError(problems)
    return tuple(rules)


def _rule(table: Mapping[str, Any], schema: TableSchema) -> Rule:
    for key in table:
        if key not in _RULE_KEYS:
            raise ValueError(f"there is no key {shown(key)}; the keys are {', '.join(_RULE_KEYS)}")
    name = _text(table, "name", "freezer-warm", RULE_NAME)
    sensors = _text(table, "sensors", "freezer-*", _GLOB, "*")
    severity = _text(table, "severity", "page", _SEVERITY, "warning")
    metadata = table.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError('metadata takes names and texts, like { site = "north" }')
    for of_metadata in metadata:
        _check_name(of_metadata)
    pairs = tuple(sorted(metadata.items()))
    if "silent_for" in table:
        if other := [key for key in _OF_METRIC if key in table]:
            raise ValueError(f"{other[0]} does not go with silent_for, which is about all readings of a sensor")
        if schema.latest is None:
            raise ValueError("silent_for needs rows of newest readings, and the table has none (latest = false)")
        silence = _duration(table, "silent_for", _LEAST_SILENCE)
        return Rule(name, sensors, pairs, severity, silent_for_us=silence)
    if "metric" not in table:
        raise ValueError("needs metric, or silent_for")
    metric = _text(table, "metric", "temperature")
    _check_name(metric)
    of, tier = _windows_of(table, metric, schema)
    return Rule(name, sensors, pairs, severity, metric, condition_of(table), _duration(table, "for"), of, tier)


def _windows_of(table: Mapping[str, Any], metric: str, schema: TableSchema) -> tuple[str | None, str | None]:
    """Returns the statistic and the tier of a rule on windows."""
    if ("of" in table) != ("tier" in table):
        raise ValueError("of and tier go together: a statistic, and the tier of its windows")
    if "of" not in table:
        return None, None
    name, text = _text(table, "of", "avg"), _text(table, "tier", "1h")
    found = statistic(name)  # says which there are
    tier = _tier(schema, text)
    if tier is None:
        tiers = ", ".join(tier.window.text for tier in schema.tiers) or "none"
        raise ValueError(f"the table has no tier {text}; its tiers are {tiers}")
    stored = tier.statistics.of(metric)
    if found not in stored:
        names = ", ".join(each.name for each in stored if each.listed)
        raise ValueError(f"the table does not store {name} of {metric}; its schema declares {names}")
    return name, tier.window.text


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{shown(name)} is not a name of a metric or of metadata: it does not match {_NAME.pattern}")


def _tier(schema: TableSchema, text: str) -> Tier | None:
    try:
        return schema.tier(parse_window(text))
    except ValueError:
        return None


def _text(
    table: Mapping[str, Any], key: str, example: str, form: re.Pattern[str] = _TEXT, default: str | None = None
) -> str:
    value = table.get(key, default)
    if value is None:
        raise ValueError(f'needs {key}, like "{example}"')
    if not isinstance(value, str) or not form.fullmatch(value):
        raise ValueError(f'{key} takes a text like "{example}", not {written(value)}')
    return value


def _duration(table: Mapping[str, Any], key: str, least: timedelta = timedelta(0)) -> int:
    value = table.get(key, "0")
    if not isinstance(value, str):
        raise ValueError(f'{key} takes a duration, like "10m", not {written(value)}')
    try:
        duration = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if not least <= duration <= _LONGEST:
        raise ValueError(f"{key} takes {format_duration(least)} to {format_duration(_LONGEST)}, not {value}")
    return duration // _MICROSECOND
