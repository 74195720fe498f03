"""Parses the rules of alerts, which are written in TOML, and checks them against a table's schema."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from fnmatch import translate
from functools import cached_property
from typing import Any, NamedTuple

from pipeline.core.events.event import checked_sensor_id
from pipeline.core.notation.documents import parse_toml
from pipeline.core.notation.durations import format_duration, parse_duration
from pipeline.core.notation.text import shown
from pipeline.core.notation.times import UTC_ZONE, checked_zone, to_datetime, zone_of
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.statistics.window_stats import statistic
from pipeline.core.windows import Window, parse_window

MAX_RULES = 100
MAX_BYTES = 2_000_000  # of the text that a table stores: some 100,000 ids
RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

FIRES, BETWEEN, CLEARS = 1, 0, -1
"""Classes of values. Between the two limits of a condition with hysteresis, an alert stays as it is."""

_CLEARS_BY = {
    "above": "clears_below",
    "below": "clears_above",
    "outside": "clears_inside",
    "inside": "clears_outside",
}
_OPPOSITES = {"above": "below", "below": "above", "outside": "inside", "inside": "outside"}
KINDS = tuple(_CLEARS_BY)
_CONDITION_KEYS = (*KINDS, *_CLEARS_BY.values())

_SELECTS = ("name", "sensors", "sensors_file", "metadata", "severity", "quiet")
_OF_WINDOWS = ("of", "tier", "min_count", "min_coverage")
_OF_METRIC = ("metric", *_OF_WINDOWS, "rate_of_change", "for", *_CONDITION_KEYS, "unchanged_for", "tolerance")
_RULE_KEYS = (*_SELECTS, *_OF_METRIC, "silent_for")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_SEVERITY = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_GLOB = re.compile(r"[!-\"$-~]{1,256}")  # what a sensor id may contain
_TEXT = re.compile(r"[ -~]{1,128}")
_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)(?:@(.+))?")
_RATES_US = {"minute": 60_000_000, "hour": 3_600_000_000}
_PER = {_RATES_US["minute"]: "min", _RATES_US["hour"]: "h"}
_MICROSECOND = timedelta(microseconds=1)
_LEAST_SILENCE = timedelta(minutes=1)
_LONGEST = timedelta(days=365)
_PAGE = "page"


class RulesError(ValueError):
    """Rules that are not valid. ``str()`` is a line for each problem, which names the file and the rule."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class QuietTime(NamedTuple):
    """A time of day at which messages wait.

    Attributes:
        begin: the minute of the day at which it begins.
        end: the minute at which it ends, on the next day if it is not later than the begin.
        zone: the time zone.
    """

    begin: int
    end: int
    zone: str

    def end_us(self, now_us: int) -> int | None:
        """Returns the end of the quiet time that it is now; None if it is not quiet."""
        now = to_datetime(now_us).astimezone(zone_of(self.zone))
        minute, length = now.hour * 60 + now.minute, (self.end - self.begin) % 1440 or 1440
        if (minute - self.begin) % 1440 >= length:
            return None
        left = (self.end - minute - 1) % 1440 + 1
        return now_us - now_us % 60_000_000 + left * 60_000_000  # where clocks change meanwhile, it is found again


@dataclass(frozen=True)
class AlertCondition:
    """A condition on a value.

    Args:
        kind: one of :data:`KINDS`.
        low: the lower limit; for ``above`` and ``below`` the only one.
        high: the upper limit; the same as the lower one if there is one only.
        clears: the limits at which the alert clears, in the same form; None for the first ones.
    """

    kind: str
    low: float
    high: float
    clears: tuple[float, float] | None = None

    def classify(self, value: float) -> int:
        """Returns the class of a value: :data:`FIRES`, :data:`BETWEEN` or :data:`CLEARS`."""
        return FIRES if self.fires(value) else CLEARS if self.cleared(value) else BETWEEN

    @cached_property
    def fires(self) -> Callable[[float], bool]:
        """Whether a value fires."""
        return _test(self.kind, self.low, self.high)

    @cached_property
    def cleared(self) -> Callable[[float], bool]:
        """Whether a value clears."""
        if self.clears is None:
            fires = self.fires
            return lambda value: not fires(value)
        return _test(_OPPOSITES[self.kind], *self.clears)

    @property
    def calm(self) -> tuple[float, float]:
        """A range in which no value fires, both ends included. An empty range, if that is not one range."""
        match self.kind:
            case "above":
                return -math.inf, self.low
            case "below":
                return self.low, math.inf
            case "outside":
                return self.low, self.high
        return math.inf, -math.inf

    def __str__(self) -> str:
        limits = f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return f"{self.kind} {limits}"


def _test(kind: str, low: float, high: float) -> Callable[[float], bool]:
    match kind:
        case "above":
            return lambda value: value > low
        case "below":
            return lambda value: value < low
        case "outside":
            return lambda value: not low <= value <= high
    return lambda value: low <= value <= high


@dataclass(frozen=True)
class Rule:
    """A rule of an alert: on a metric's readings, their change, a statistic of its windows, or silence.

    Args:
        name: the name, unique in a table.
        sensors: a glob of sensor ids, or the ids themselves.
        metadata: names of metadata with the values that a sensor's newest metadata has to have.
        severity: a text for whoever receives the alert.
        metric: the metric; None for a rule on silence.
        condition: the condition on the values; None for a rule on silence or on values that do not move.
        for_us: the event time for which the condition has to hold.
        of: the statistic of windows; None for a rule on readings.
        tier: the tier of the windows; None for a rule on readings.
        silent_for_us: the event time without a reading; zero for the other rules.
        min_count: the number of readings without which a window changes nothing.
        min_coverage: the share of the expected readings without which a window changes nothing.
        per_us: the time to which a change between readings refers; zero for a rule on something else.
        unchanged_for_us: the event time for which a value does not move; zero for the other rules.
        tolerance: the difference up to which a value has not moved.
        quiet: the times at which messages wait.
        gone: whether the rule was changed or removed, so that only the name is known.
    """

    name: str
    sensors: str | tuple[str, ...] = "*"
    metadata: tuple[tuple[str, str], ...] = ()
    severity: str = "warning"
    metric: str | None = None
    condition: AlertCondition | None = None
    for_us: int = 0
    of: str | None = None
    tier: str | None = None
    silent_for_us: int = 0
    min_count: int = 0
    min_coverage: float = 0.0
    per_us: int = 0
    unchanged_for_us: int = 0
    tolerance: float = 0.0
    quiet: tuple[QuietTime, ...] = ()
    gone: bool = False

    @cached_property
    def revision(self) -> str:
        """A text that differs if the rule fires for anything else, whomever it tells; empty if it is gone."""
        if self.gone:
            return ""
        parts = {**vars(self), "condition": self.condition and astuple(self.condition)}
        kept = {key: parts[key] for key in sorted(_FIRES_BY & parts.keys())}
        return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:12]

    @cached_property
    def id(self) -> str:
        """The name and the revision."""
        return f"{self.name}@{self.revision}"

    @property
    def follows(self) -> bool:
        """Whether the rule compares each reading with the one before it."""
        return bool(self.per_us or self.unchanged_for_us)

    @property
    def expected(self) -> tuple[str, ...]:
        """The sensors that the rule names one by one."""
        return () if isinstance(self.sensors, str) else self.sensors

    @cached_property
    def window(self) -> Window | None:
        """The window of the tier; None for a rule on readings."""
        return None if self.tier is None else parse_window(self.tier)

    @cached_property
    def _sensors(self) -> Callable[[str], object]:
        sensors = self.sensors
        return re.compile(translate(sensors)).match if isinstance(sensors, str) else frozenset(sensors).__contains__

    def matches(self, sensor_id: str) -> bool:
        """Returns whether a sensor's id is one of the rule's. Its metadata may still differ."""
        return self.sensors == "*" or bool(self._sensors(sensor_id))

    def fits(self, metadata: Mapping[str, str]) -> bool:
        """Returns whether a sensor's metadata is what the rule asks for."""
        return all(metadata.get(name) == value for name, value in self.metadata)

    def unit_in(self, schema: TableSchema) -> str | None:
        """Returns the unit of the values that the rule looks at; None if the schema has none."""
        unit = schema.unit_of(self.metric, self.of) if self.metric is not None else None
        return f"{unit}/{_PER[self.per_us]}" if unit and self.per_us else unit

    def label_in(self, schema: TableSchema) -> str | None:
        """Returns the label of the rule's metric; None if the schema has none."""
        return schema.labels.get(self.metric) if self.metric is not None else None

    def quiet_until_us(self, now_us: int) -> int | None:
        """Returns the time until which messages wait; None if they do not."""
        return max((end_us for quiet in self.quiet if (end_us := quiet.end_us(now_us)) is not None), default=None)

    @property
    def summary(self) -> str:
        """The condition in a few words."""
        if self.gone:
            return "the rule was changed or removed"
        if self.silent_for_us:
            return f"silent for {_written_duration(self.silent_for_us)}"
        if self.unchanged_for_us:
            within = f" by more than {self.tolerance:g}" if self.tolerance else ""
            return f"{self.metric} does not move{within} for {_written_duration(self.unchanged_for_us)}"
        what = self.metric if self.of is None else f"{self.of} of {self.metric} in {self.tier}"
        if self.per_us:
            what = f"change of {what} per {next(name for name, us in _RATES_US.items() if us == self.per_us)}"
        least = [f"at least {self.min_count} readings"] if self.min_count else []
        least += [f"coverage of at least {self.min_coverage:g}"] if self.min_coverage else []
        lasting = f" for {_written_duration(self.for_us)}" if self.for_us else ""
        return f"{what} {self.condition}{lasting}{' with ' + ' and '.join(least) if least else ''}"


_FIRES_BY = {field.name for field in fields(Rule)} - {"severity", "quiet", "gone"}


def _written_duration(duration_us: int) -> str:
    return format_duration(timedelta(microseconds=duration_us))


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
        raise RulesError([f"{source}: is larger than {MAX_BYTES // 1_000_000} MB"])
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
    severity = _text(table, "severity", "page", _SEVERITY, "warning")
    metadata = table.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError('metadata takes names and texts, like { site = "north" }')
    for of_metadata in metadata:
        _check_name(of_metadata)
    whom: dict[str, Any] = {
        "sensors": _sensors_of(table),
        "metadata": tuple(sorted(metadata.items())),
        "severity": severity,
        "quiet": _quiet_of(table, severity),
    }
    if "silent_for" in table:
        _check_alone(table, "silent_for, which is about all readings of a sensor", _OF_METRIC)
        if schema.latest is None:
            raise ValueError("silent_for needs rows of newest readings, and the table has none (latest = false)")
        return Rule(name, silent_for_us=_duration(table, "silent_for", _LEAST_SILENCE), **whom)
    if "metric" not in table:
        raise ValueError("needs metric, or silent_for")
    whom["metric"] = _text(table, "metric", "temperature")
    _check_name(whom["metric"])
    if "unchanged_for" in table:
        others = [key for key in _OF_METRIC if key not in ("metric", "unchanged_for", "tolerance")]
        _check_alone(table, "unchanged_for, which is a condition itself", others)
        unchanged_us = _duration(table, "unchanged_for", _LEAST_SILENCE)
        return Rule(name, unchanged_for_us=unchanged_us, tolerance=_number(table, "tolerance"), **whom)
    _check_alone(table, "a limit; it belongs to unchanged_for", ("tolerance",))
    if "rate_of_change" in table:
        _check_alone(table, "rate_of_change, which compares readings", _OF_WINDOWS)
        per = table["rate_of_change"]
        if not isinstance(per, str) or per not in _RATES_US:
            raise ValueError(f'rate_of_change takes "minute" or "hour", not {_written(per)}')
        whom["per_us"] = _RATES_US[per]
    of, tier = _windows_of(table, whom["metric"], schema)
    if of is None:
        _check_alone(table, "readings; it belongs to a rule with of and tier", ("min_count", "min_coverage"))
    count, coverage = _number(table, "min_count", whole=True), _number(table, "min_coverage")
    if coverage > 1:
        raise ValueError(f"min_coverage takes a share from 0 to 1, not {coverage:g}")
    if coverage and schema.rate is None:
        raise ValueError('min_coverage needs the rate that sensors are to have: [rate] every = "1m" in the schema')
    condition, for_us = condition_of(table), _duration(table, "for")
    return Rule(
        name, condition=condition, for_us=for_us, of=of, tier=tier, min_count=int(count), min_coverage=coverage, **whom
    )


def _check_alone(table: Mapping[str, Any], key: str, others: Iterable[str]) -> None:
    if wrong := [other for other in others if other in table]:
        raise ValueError(f"{wrong[0]} does not go with {key}")


def _sensors_of(table: Mapping[str, Any]) -> str | tuple[str, ...]:
    """Returns the glob of a rule, or the ids that it names."""
    if "sensors_file" in table:
        raise ValueError("sensors_file names a file that only alerts apply reads")
    sensors = table.get("sensors", "*")
    if not isinstance(sensors, list):
        return _text(table, "sensors", "freezer-*", _GLOB, "*")
    if not sensors or not all(isinstance(each, str) for each in sensors):
        raise ValueError('sensors takes a glob like "freezer-*", or a list of ids')
    return tuple(sorted({checked_sensor_id(each) for each in sensors}))


def _quiet_of(table: Mapping[str, Any], severity: str) -> tuple[QuietTime, ...]:
    times = table.get("quiet", [])
    if times and severity == _PAGE:
        raise ValueError(f'quiet does not go with severity = "{_PAGE}", which never waits')
    found = []
    for text in times if isinstance(times, list) else [times]:
        match = _QUIET.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f'quiet takes times like ["22:00-06:00@Europe/Berlin"], not {_written(text)}')
        hour, minute, until_hour, until_minute = map(int, match.groups()[:4])
        zone = checked_zone(match[5] or UTC_ZONE)
        found.append(QuietTime(hour * 60 + minute, until_hour * 60 + until_minute, zone))
    return tuple(found)


def _number(table: Mapping[str, Any], key: str, *, whole: bool = False) -> float:
    """Returns a number that is not negative; 0 without the key."""
    value, types = table.get(key, 0), (int,) if whole else (int, float)
    if type(value) not in types or not 0 <= value < math.inf:
        raise ValueError(f"{key} takes a {'whole ' if whole else ''}number from 0, not {_written(value)}")
    return float(value)


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
        raise ValueError(f'{key} takes a text like "{example}", not {_written(value)}')
    return value


def _duration(table: Mapping[str, Any], key: str, least: timedelta = timedelta(0)) -> int:
    value = table.get(key, "0")
    if not isinstance(value, str):
        raise ValueError(f'{key} takes a duration, like "10m", not {_written(value)}')
    try:
        duration = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if not least <= duration <= _LONGEST:
        raise ValueError(f"{key} takes {format_duration(least)} to {format_duration(_LONGEST)}, not {value}")
    return duration // _MICROSECOND


def condition_of(rule: Mapping[str, Any]) -> AlertCondition:
    """Returns the condition that the keys of a rule define. Raises ValueError with a line that names the key."""
    kinds = [kind for kind in KINDS if kind in rule]
    if len(kinds) != 1:
        found = " and ".join(kinds) if kinds else "none"
        raise ValueError(f"needs one of {', '.join(KINDS)}, and has {found}")
    kind = kinds[0]
    clears_by = _CLEARS_BY[kind]
    if wrong := [key for key in _CLEARS_BY.values() if key in rule and key != clears_by]:
        raise ValueError(f"{wrong[0]} does not go with {kind}; {kind} clears by {clears_by}")
    pair = kind in ("outside", "inside")
    low, high = _limits(kind, rule[kind], pair)
    if clears_by not in rule:
        return AlertCondition(kind, low, high)
    clear_low, clear_high = clears = _limits(clears_by, rule[clears_by], pair)
    possible = {
        "above": clear_low <= low,
        "below": clear_low >= low,
        "outside": low <= clear_low and clear_high <= high,
        "inside": clear_low <= low and high <= clear_high,
    }[kind]
    if not possible:
        side = {"above": "at or below", "below": "at or above", "outside": "within", "inside": "around"}[kind]
        raise ValueError(f"{clears_by} has to be {side} {kind}: with these limits it could fire and clear at once")
    return AlertCondition(kind, low, high, clears)


def _limits(key: str, value: Any, pair: bool) -> tuple[float, float]:
    limits = value if pair and isinstance(value, list) else [value]
    if len(limits) != (2 if pair else 1) or not all(_is_number(limit) for limit in limits):
        expected = "two numbers, like [2, 8]" if pair else "a number, like -15"
        raise ValueError(f"{key} takes {expected}, not {_written(value)}")
    low, high = float(limits[0]), float(limits[-1])
    if low > high:
        raise ValueError(f"{key} has its limits in the wrong order; write [{high:g}, {low:g}]")
    return low, high


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _written(value: Any) -> str:
    """Returns the beginning of a value from TOML, safe to put into a message."""
    return f"{value!r:.80}"
