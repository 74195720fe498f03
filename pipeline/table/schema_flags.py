"""Flags that describe a table's schema: all of it from a file, or changes to the current one."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import click

from pipeline.cli.options import Command, InputText, Parsed, schema_option
from pipeline.cloud.tables.tables import to_rule
from pipeline.core.notation.cell_values import Values
from pipeline.core.notation.documents import placed
from pipeline.core.notation.text import parse_pair
from pipeline.core.schema.family_rules import FamilyRules
from pipeline.core.schema.gc_policies import EXAMPLE, Policy, PolicyError, parse_policy
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.layouts import LAYOUTS
from pipeline.core.schema.sizing import check_sizes
from pipeline.core.schema.table_schema import SchemaError, TableSchema, Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import Statistics
from pipeline.core.windows import parse_window

_ANY = ("*",)


def _pair(form: str, example: str, parse: Callable[[str, str], Any]) -> Parsed:
    """Returns the type of an option of this form. ``parse`` takes its two parts, and may raise ValueError."""
    return Parsed(form.lower(), lambda text: parse(*parse_pair(text, form, example)))


def _family_policy(family: str, text: str) -> tuple[str, Policy]:
    try:
        policy = parse_policy(text)
        to_rule(policy)  # refuses a policy too long for Bigtable before any request
    except PolicyError as error:
        raise ValueError(f"family {family}: {error}") from None
    return family, policy


def _glob_statistics(glob: str, text: str) -> tuple[str, tuple[str, ...]]:
    [rule] = Statistics(((glob, tuple(text.split(","))),)).globs
    return rule


def _family_option(flag: str, holds: str) -> Callable[[Command], Command]:
    return click.option(flag, metavar="FAMILY", help=f"The name of the column family of {holds}.")


@dataclass(frozen=True)
class SchemaFlags:
    """The schema flags. None, or an empty tuple, keeps the current setting."""

    text: str | None = None  # the file's schema
    file: str | None = None
    key: KeyTemplate | None = None
    layout: str | None = None
    values: str | None = None
    tiers: tuple[Tier, ...] = ()
    raw_family: str | None = None
    stats_family: str | None = None
    meta_family: str | None = None
    latest_family: str | None = None
    statistics: tuple[tuple[str, tuple[str, ...]], ...] = ()
    policies: tuple[tuple[str, Policy], ...] = ()

    def requested(self, current: TableSchema) -> TableSchema:
        """Returns the schema that results from the flags and a table's current schema.

        Raises:
            click.UsageError: the flags describe no valid schema. The message begins with the key at fault, after the
                name of the file and the line, if any.
        """
        try:
            whole = None if self.text is None else parse_schema(self.text, current)
            schema = self._with_policies(whole or self._changed(current))
            check_sizes(schema)
            _refuse_long_policies(schema)
        except SchemaError as error:
            where = f"{placed(self.file, self.text or '', str(error))}: " if self.file else ""
            raise click.UsageError(f"{where}{error}") from None
        return schema

    def _changed(self, base: TableSchema) -> TableSchema:
        """Returns the schema with the flags' changes. Drops settings that a new layout does not use."""
        layout = LAYOUTS[self.layout] if self.layout else base.layout
        metrics, metadata, values = base.metrics, base.metadata, base.values
        if layout.serializes and not base.layout.serializes:
            metrics, metadata, values = FamilyRules(((metrics.families[0], _ANY),)), FamilyRules(), Values.TEXT
        elif base.layout.serializes and not layout.serializes:
            metadata = FamilyRules((("meta", _ANY),))
        names = self._new_names(metrics, base.tiers, metadata)
        changed = replace(
            base,
            key=self.key or base.key,
            layout=layout,
            values=Values(self.values) if self.values else values,
            metrics=_renamed(metrics, names),
            metadata=_renamed(metadata, names),
            tiers=self.tiers or tuple(Tier(tier.window, names.get(tier.family, tier.family)) for tier in base.tiers),
            policies={},
            statistics=Statistics(self.statistics) if self.statistics else base.statistics,
            latest=self.latest_family or base.latest,
        )
        policies = {names.get(family, family): policy for family, policy in base.policies.items()}
        return replace(changed, policies={name: policies[name] for name in changed.families if name in policies})

    def _new_names(self, metrics: FamilyRules, tiers: tuple[Tier, ...], metadata: FamilyRules) -> dict[str, str]:
        """Returns the new names of renamed families, by their current names."""
        new_names = {}
        for flag, new_name, families in (
            ("--raw-family", self.raw_family, metrics.families),
            ("--stats-family", self.stats_family, tuple(tier.family for tier in tiers[:1])),
            ("--meta-family", self.meta_family, metadata.families),
        ):
            if new_name is None:
                continue
            if len(families) != 1:
                count = f"several such families, {', '.join(families)}" if families else "no such family"
                raise click.UsageError(f"{flag}: the schema has {count}; describe it with --schema")
            new_names[families[0]] = new_name
        return new_names

    def _with_policies(self, schema: TableSchema) -> TableSchema:
        for family, _ in self.policies:
            if family not in schema.families:
                raise click.UsageError(f"--gc {family}=…: the table's families are {', '.join(schema.families)}")
        return replace(schema, policies={**schema.policies, **dict(self.policies)}) if self.policies else schema


def schema_flags(command: Command) -> Command:
    """Adds ``--schema``, ``--key`` and the other schema flags. The command receives ``flags``, a SchemaFlags."""

    @schema_option
    @click.option(
        "--key",
        type=Parsed("template", KeyTemplate.parse),
        help="The row key template, such as '{salt:2}#{sensor_id}#{reverse_ms}'.",
    )
    @click.option("--layout", type=click.Choice(list(LAYOUTS)), help="How events become rows and cells.")
    @click.option("--values", type=click.Choice([str(it) for it in Values]), help="How to encode readings.")
    @click.option(
        "--tier",
        "tiers",
        type=_pair("WINDOW=FAMILY", "1d=daily", lambda window, family: Tier(parse_window(window), family)),
        multiple=True,
        help="An aggregate window and its family, such as 1d=daily or 1d@Europe/Berlin=berlin. Repeatable; replaces "
        "all current tiers.",
    )
    @click.option(
        "--statistics",
        type=_pair("GLOB=STATISTICS", "energy_*=last,p95", _glob_statistics),
        multiple=True,
        help="The statistics of metrics that a glob matches, such as energy_*=last,p95. The first glob that matches "
        "counts. Repeatable; replaces all current ones.",
    )
    @_family_option("--raw-family", "readings")
    @_family_option("--stats-family", "the shortest window's aggregates")
    @_family_option("--meta-family", "metadata")
    @_family_option("--latest-family", "each sensor's newest readings")
    @click.option(
        "--gc",
        "policies",
        type=_pair("FAMILY=POLICY", "raw=maxage=30d", _family_policy),
        multiple=True,
        help=f"A family's garbage collection policy, in the syntax of cbt setgcpolicy: raw=maxage=30d, or "
        f"'raw={EXAMPLE}'. Repeatable, also with --schema.",
    )
    @functools.wraps(command)
    def with_flags(*args: Any, schema: InputText | None, **kwargs: Any) -> Any:
        flags = SchemaFlags(**{each.name: kwargs.pop(each.name) for each in fields(SchemaFlags) if each.name in kwargs})
        if flags.tiers and flags.stats_family is not None:
            raise click.UsageError(
                "--stats-family and --tier: the tiers name their families; pass only one of the flags"
            )
        return command(*args, flags=flags if schema is None else _from_file(schema, flags), **kwargs)

    return with_flags


def _from_file(file: InputText, others: SchemaFlags) -> SchemaFlags:
    """Returns the flags with the file's schema. Validates it before any request to a server."""
    if others != SchemaFlags(policies=others.policies):
        raise click.UsageError(
            "--schema describes the whole schema: of the other schema flags, only --gc can be combined with it"
        )
    if not file.text.strip():
        raise click.UsageError(f"{file.name}: schema: the file is empty; 'table describe --format toml' prints one")
    flags = SchemaFlags(file.text, file.name, policies=others.policies)
    flags.requested(TableSchema.for_new_table())
    return flags


def _renamed(rules: FamilyRules, new_names: Mapping[str, str]) -> FamilyRules:
    return FamilyRules(tuple((new_names.get(family, family), globs) for family, globs in rules.globs))


def _refuse_long_policies(schema: TableSchema) -> None:
    for family, policy in schema.policies.items():
        try:
            to_rule(policy)
        except PolicyError as error:
            raise SchemaError(f"policies.{family}", str(error)) from None
