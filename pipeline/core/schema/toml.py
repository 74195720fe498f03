"""Schemas as TOML: the format that users write, tables store, and ``table describe`` prints.

docs/schema-reference.md describes every key. Omitted keys have the values of the default schema; a serializing layout
has no ``[metadata]``. A stored schema without ``latest`` has no newest readings; a file for a new table has them.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pipeline.core.events.event import MAX_METADATA, MAX_READINGS
from pipeline.core.events.invalid_readings import Invalid, parse_range
from pipeline.core.notation.cell_values import Values
from pipeline.core.notation.documents import parse_toml
from pipeline.core.notation.durations import format_interval, parse_interval
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import Policy, PolicyError, format_policy, parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.rate import MAX_SHARDS, Rate
from pipeline.core.schema.rollup import SHARDS, Rollup
from pipeline.core.schema.table_schema import SchemaError, TableSchema, Tier
from pipeline.core.statistics.window_stats import Statistics
from pipeline.core.windows import parse_window

_S = TypeVar("_S")
_T = TypeVar("_T")

_TABLES = ("metrics", "metadata", "tiers", "statistics", "rollups", "policies", "rate")
_KEYS = ("key", "layout", "values", "latest", "metadata_alone", "invalid", *_TABLES)
_BARE_WINDOW = re.compile(r"^\s*([0-9a-z]+@[^\s=\"']+)\s*=", re.MULTILINE)  # a key that TOML has in quotes only
_SECOND_TABLE = re.compile(r"\('metrics', '([^']+)'\) twice")  # in the parser's message
_METRIC_KEYS = ("unit", "label", "valid")
_ROLLUP_KEYS = ("by", "tiers", "metrics")
_RATE_LIMITS = {
    "metrics": (1, MAX_READINGS),
    "metadata": (0, MAX_METADATA),
    "event_bytes": (1, 1_000_000_000),  # far more than Pub/Sub takes: the check of sizes explains smaller excesses
    "sensors": (1, 1_000_000_000),
}
_RATE_KEYS = ("every", *_RATE_LIMITS)
_BY_METADATA = "metadata."


def parse_schema(text: str, current: TableSchema | None = None) -> TableSchema:
    """Parses a schema from TOML.

    Args:
        text: the TOML.
        current: the schema of the table that a person's text is for, from which come the family of newest readings and
            the number of shards if the text lacks them; None for the text that a table stores.

    Raises:
        SchemaError: the text is not TOML, or not a schema; the message begins with the key at fault.
    """
    try:
        document = parse_toml(text)
    except ValueError as error:
        hint = f'; quote the window: "{found[1]}" = …' if (found := _BARE_WINDOW.search(text)) else ""
        if found := _SECOND_TABLE.search(str(error)):
            hint = f"; if {found[1]} is a family, the metric of the same name can't be declared"
        raise SchemaError("schema", f"it is not TOML: {error}{hint}") from None
    if current is not None:
        _complete(document, current)
    return schema_of(document)


def _complete(document: dict[str, Any], current: TableSchema) -> None:
    """Adds what the table has and a person's text leaves out. Raises SchemaError."""
    if current.latest is not None and document.get("tiers") != {}:
        document.setdefault("latest", current.latest)
    rollups = document.setdefault("rollups", {})
    if not isinstance(rollups, dict):
        return  # which has its own message
    # A table keeps the number without them too, for those that are added again.
    if rollups.keys() == {SHARDS}:
        raise SchemaError(
            f"rollups.{SHARDS}",
            'is for the sensors of roll-ups, and there are none: add one, like site = { by = "metadata.site" }, or '
            "leave it out",
        )
    if current.rollup_shards is not None:
        rollups.setdefault(SHARDS, current.rollup_shards)


def schema_of(document: Mapping[str, Any]) -> TableSchema:
    """Returns the schema of a parsed TOML document. Raises SchemaError."""
    _check_keys(document, _KEYS)
    layout_name = _text(document, "layout", "wide")
    if layout_name not in LAYOUTS:
        raise SchemaError("layout", f"{layout_name!r} is none of {', '.join(LAYOUTS)}")
    layout, rollups = LAYOUTS[layout_name], _table(document, "rollups", {})
    return TableSchema(
        key=_parsed("key", _text(document, "key", "{sensor_id}#{reverse_us}"), KeyTemplate.parse),
        layout=layout,
        values=_parsed("values", _text(document, "values", Values.TEXT), _values),
        metrics=_metric_rules(document),
        metadata=_rules(document, "metadata", {} if layout.serializes else {"meta": ["*"]}),
        tiers=_tiers(document),
        policies=_policies(document),
        rate=_rate(document),
        statistics=_statistics(document),
        latest=_text(document, "latest", "latest") if document.get("latest", False) is not False else None,
        metadata_alone=_flag(document, "metadata_alone"),
        rollups=tuple(_rollup(f"rollups.{name}", name, rollups[name]) for name in rollups if name != SHARDS),
        rollup_shards=_number(rollups, SHARDS, 1, MAX_SHARDS, "rollups") if SHARDS in rollups else None,
        declared=_declared(document),
        invalid=_invalid(document),
    )


def document_of(schema: TableSchema) -> dict[str, Any]:
    """Returns the complete schema, with its defaults, as a TOML document."""
    document: dict[str, Any] = {"key": schema.key.text, "layout": schema.layout.name}
    if not schema.layout.serializes:
        document["values"] = str(schema.values)
    if schema.latest is not None:
        document["latest"] = schema.latest
    if schema.metadata_alone:
        document["metadata_alone"] = True
    if schema.invalid is not Invalid.DROP_READING:
        document["invalid"] = str(schema.invalid)
    declared = {metric: declared.document() for metric, declared in sorted(schema.declared.items())}
    document["metrics"] = {family: list(globs) for family, globs in schema.metrics.globs} | declared
    if not schema.layout.serializes:
        document["metadata"] = {family: list(globs) for family, globs in schema.metadata.globs}
    document["tiers"] = {tier.window.text: tier.family for tier in schema.tiers}
    if schema.statistics.globs:
        document["statistics"] = {glob: list(names) for glob, names in schema.statistics.globs}
    if schema.rollup_shards is not None:
        document["rollups"] = {rollup.name: _document_of_rollup(rollup) for rollup in schema.rollups}
        document["rollups"][SHARDS] = schema.rollup_shards
    document["policies"] = {family: format_policy(schema.policies[family]) for family in schema.families}
    if rate := schema.rate:
        numbers = {key: number for key in _RATE_LIMITS if (number := getattr(rate, key)) is not None}
        document["rate"] = {"every": format_interval(rate.every_us), **numbers}
    return document


def _document_of_rollup(rollup: Rollup) -> dict[str, Any]:
    by = [_BY_METADATA + name for name in rollup.by]
    entry: dict[str, Any] = {"by": by[0] if len(by) == 1 else by}
    if rollup.tiers:
        entry["tiers"] = list(rollup.tiers)
    if rollup.metrics != Rollup.metrics:
        entry["metrics"] = list(rollup.metrics)
    return entry


def format_schema(schema: TableSchema, *, for_new_table: bool = False) -> str:
    """Returns the schema as TOML; equal schemas have equal text. ``parse_schema`` reads it back.

    Args:
        schema: the schema.
        for_new_table: whether the text is for :func:`parse_schema` of any table: it declares that there are no newest
            readings, which a new table has otherwise, and no number of shards without roll-ups.
    """
    import tomlkit  # only writing needs it, and every command would wait for it

    has_none = for_new_table and schema.latest is None and bool(schema.tiers)
    document = ({"latest": False} if has_none else {}) | document_of(schema)
    if for_new_table and not schema.rollups:
        document.pop("rollups", None)
    for name, entry in document.get("rollups", {}).items():
        if name != SHARDS:
            document["rollups"][name] = tomlkit.inline_table()
            document["rollups"][name].update(entry)
    return tomlkit.dumps(document)


def _values(text: str) -> Values:
    try:
        return Values(text)
    except ValueError:
        raise ValueError(f"{text!r} is none of {', '.join(Values)}") from None


def _metric_rules(document: Mapping[str, Any]) -> FamilyRules:
    """Returns the families of readings; the default one if the section has nothing but metrics."""
    default = {"raw": ["*"]}
    section = _table(document, "metrics", default)
    families = {name: entry for name, entry in section.items() if not isinstance(entry, dict)}
    return _rules({} if section and not families else {"metrics": families}, "metrics", default)


def _declared(document: Mapping[str, Any]) -> dict[str, DeclaredMetric]:
    declared = {}
    for metric, entry in _table(document, "metrics", {}).items():
        if not isinstance(entry, dict):
            continue
        key = f"metrics.{metric}"
        for each in entry:
            if each not in _METRIC_KEYS:
                dotted = isinstance(entry[each], dict)
                hint = f'; quote a name with a dot: [metrics."{metric}.{each}"]' if dotted else ""
                keys = ", ".join(_METRIC_KEYS)
                raise SchemaError(f"{key}.{each}", f"there is no such key; the keys of a metric are {keys}{hint}")
        if not entry:
            raise SchemaError(key, f'is empty; it takes {", ".join(_METRIC_KEYS)}, like unit = "µg/m³"')
        declared[metric] = DeclaredMetric(
            _text(entry, "unit", "µg/m³", f"{key}.") if "unit" in entry else None,
            _text(entry, "label", "Fine dust", f"{key}.") if "label" in entry else None,
            _parsed(f"{key}.valid", entry["valid"], parse_range) if "valid" in entry else None,
        )
    return declared


def _invalid(document: Mapping[str, Any]) -> Invalid:
    text = _text(document, "invalid", Invalid.DROP_READING)
    if text not in list(Invalid):
        raise SchemaError("invalid", f"{text!r} is none of {', '.join(Invalid)}")
    return Invalid(text)


def _rules(document: Mapping[str, Any], key: str, default: dict[str, list[str]]) -> FamilyRules:
    problem = 'takes a list of globs, like ["temperature", "log_*"]'
    rules = _table(document, key, default).items()
    return FamilyRules(tuple((family, _texts(f"{key}.{family}", globs, problem)) for family, globs in rules))


def _tiers(document: Mapping[str, Any]) -> tuple[Tier, ...]:
    tiers = _table(document, "tiers", {"1h": "stats"})
    return tuple(
        Tier(_parsed(f"tiers.{window}", window, parse_window), _text(tiers, window, "stats", "tiers."))
        for window in tiers
    )


def _statistics(document: Mapping[str, Any]) -> Statistics:
    rules = []
    for glob, names in _table(document, "statistics", {}).items():
        key = f"statistics.{glob}"
        rule = glob, _texts(key, glob and names, 'takes a list of statistics, like ["avg", "p95"]')
        _parsed(key, (rule,), Statistics)
        rules.append(rule)
    return Statistics(tuple(rules))


def _rollup(key: str, name: str, entry: object) -> Rollup:
    if not isinstance(entry, dict):
        raise SchemaError(key, 'takes a table, like { by = "metadata.site" }')
    _check_keys(entry, _ROLLUP_KEYS, f"{key}.")
    if "by" not in entry:
        raise SchemaError(
            f"{key}.by", 'is needed: a metadata field, like "metadata.site", a list, or [] for all sensors'
        )
    by = [entry["by"]] if isinstance(entry["by"], str) else entry["by"]
    if not isinstance(by, list) or not all(isinstance(each, str) and each.startswith(_BY_METADATA) for each in by):
        raise SchemaError(
            f"{key}.by",
            f'takes "metadata.site", or a list of such names, or [] for all sensors, not {entry["by"]!r:.80}',
        )
    return Rollup(
        name,
        tuple(each.removeprefix(_BY_METADATA) for each in by),
        _selected(entry, key, "tiers", ["1h", "1d"]),
        _selected(entry, key, "metrics", ["temperature", "energy_*"]),
    )


def _selected(entry: Mapping[str, Any], section: str, key: str, example: list[str]) -> tuple[str, ...]:
    if key not in entry:
        return getattr(Rollup, key)
    problem = f"takes a list, like {json.dumps(example)}, not {entry[key]!r:.80}; leave it out for all"
    return _texts(f"{section}.{key}", entry[key], problem)


def _policies(document: Mapping[str, Any]) -> dict[str, Policy]:
    policies = _table(document, "policies", {})
    return {
        family: _parsed(f"policies.{family}", _text(policies, family, "maxage=30d", "policies."), parse_policy)
        for family in policies
    }


def _rate(document: Mapping[str, Any]) -> Rate | None:
    if "rate" not in document:
        return None
    rate = _table(document, "rate", {})
    _check_keys(rate, _RATE_KEYS, "rate.")
    if "every" not in rate:
        raise SchemaError("rate.every", 'is needed: the time from one event of a sensor to the next, like "1s"')
    every_us = _parsed("rate.every", _text(rate, "every", "10s", "rate."), parse_interval)
    numbers = {key: _number(rate, key, *limits) for key, limits in _RATE_LIMITS.items() if key in rate}
    return Rate(every_us, **numbers)


def _check_keys(entry: Mapping[str, Any], known: tuple[str, ...], section: str = "") -> None:
    for key in entry:
        if key not in known:
            raise SchemaError(f"{section}{key}", f"there is no such key; the keys are {', '.join(known)}")


def _table(document: Mapping[str, Any], key: str, default: dict[str, Any]) -> dict[str, Any]:
    value = document.get(key, default)
    if not isinstance(value, dict):
        raise SchemaError(key, f"must be a table: [{key}]")
    return value


def _texts(key: str, value: Any, problem: str) -> tuple[str, ...]:
    """Returns a list of texts, none of them empty, with one at least."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise SchemaError(key, problem)
    return tuple(value)


def _text(document: Mapping[str, Any], key: str, default: str, section: str = "") -> str:
    """Returns the string value of a key, or the default, which is also the example in messages."""
    value = document.get(key, default)
    if value == "":
        raise SchemaError(f"{section}{key}", f'is empty; it takes a string, like "{default}"')
    if not isinstance(value, str):
        raise SchemaError(f"{section}{key}", f'takes a string, like "{default}", not {value!r:.80}')
    return value


def _flag(document: Mapping[str, Any], key: str) -> bool:
    value = document.get(key, False)
    if not isinstance(value, bool):
        raise SchemaError(key, f"takes true or false, not {value!r:.80}")
    return value


def _number(table: Mapping[str, Any], key: str, least: int, most: int, section: str = "rate") -> int:
    value = table[key]
    if type(value) is not int or not least <= value <= most:
        raise SchemaError(f"{section}.{key}", f"takes a whole number from {least} to {most:,}, not {value!r:.80}")
    return value


def _parsed(key: str, value: _S, parse: Callable[[_S], _T]) -> _T:
    try:
        return parse(value)
    except (ValueError, PolicyError) as error:
        raise SchemaError(key, str(error)) from None
