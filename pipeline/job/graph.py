"""The pipeline itself: this page is the picture in the README.

    messages ─ DecodeMessages ─┬─ FormatRawRows ──────────────────────────────── raw rows         ┐ of each
                               ├─ AggregateReadings ─┬─ FormatAggregateRows ──── aggregate rows   │ table
                               │                     └─ RollUp ── … and so on for longer windows  ┘
                               └──────────────────────────────────────────────── dead letters

Every label is fixed: Dataflow matches a running job's steps to an update's by their labels.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.pvalue import PCollection

from pipeline.cloud.names import TableName
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.tiers import computed_from
from pipeline.job.settings import Settings
from pipeline.transforms.aggregate import AggregateReadings, Firing, RollUp
from pipeline.transforms.decode import Clock, DecodeMessages
from pipeline.transforms.rows import FormatAggregateRows, FormatRawRows
from pipeline.transforms.write import WriteDeadLetters, WriteRows


class Target(NamedTuple):
    """A table that is written, and what it looks like."""

    name: TableName
    schema: TableSchema


class TableRows(NamedTuple):
    """``Row`` elements for one table: of events, and of each tier's windows."""

    raw: PCollection
    aggregates: Mapping[Tier, PCollection]


class Outputs(NamedTuple):
    """What the graph makes: rows for each table, in the order of the tables, and ``Message`` elements."""

    rows: list[TableRows]
    dead_letters: PCollection


def build_graph(
    messages: PCollection, targets: Sequence[Target], settings: Settings, clock: Clock = time.time
) -> Outputs:
    """From ``PubsubMessage`` elements to everything that is to be written."""
    schemas = [target.schema for target in targets]
    events, dead_letters = messages | "DecodeMessages" >> DecodeMessages(settings.max_future, schemas, clock)
    panes = _aggregate(events, targets, settings)
    rows = []
    for target in targets:
        raw_rows = events | _label("FormatRawRows", targets, target) >> FormatRawRows(target.schema)
        aggregate_rows = {
            tier: panes[tier.window.length]
            | _label("FormatAggregateRows", targets, target, tier) >> FormatAggregateRows(tier)
            for tier in target.schema.tiers
        }
        rows.append(TableRows(raw_rows, aggregate_rows))
    return Outputs(rows, dead_letters)


def assemble(pipeline: beam.Pipeline, targets: Sequence[Target], settings: Settings) -> None:
    """The whole job: the graph between its source and its sinks."""
    messages = pipeline | "ReadMessages" >> ReadFromPubSub(
        topic=settings.input_topic,
        subscription=settings.input_subscription,
        id_label=settings.id_attribute,
        with_attributes=True,
        timestamp_attribute=settings.timestamp_attribute,
    )
    outputs = build_graph(messages, targets, settings)
    for target, rows in zip(targets, outputs.rows, strict=True):
        table = target.name.project, target.name.instance, target.name.table
        _ = rows.raw | _label("WriteRawRows", targets, target) >> WriteRows(*table)
        for tier, aggregate_rows in rows.aggregates.items():
            _ = aggregate_rows | _label("WriteAggregateRows", targets, target, tier) >> WriteRows(*table)
    if settings.dead_letter_topic:
        _ = outputs.dead_letters | "WriteDeadLetters" >> WriteDeadLetters(settings.dead_letter_topic)


def _aggregate(events: PCollection, targets: Sequence[Target], settings: Settings) -> dict[timedelta, PCollection]:
    """``(sensor_id, WindowStats)`` panes of every window that a table has, by its length; each is computed once."""
    firing = Firing(settings.early_firing, settings.late_firing, settings.allowed_lateness)
    windows = computed_from(tier.window for target in targets for tier in target.schema.tiers)
    made: dict[timedelta, tuple[PCollection, Firing]] = {}
    for window, shorter in windows.items():
        if shorter is None:
            label = f"AggregateReadings[{window.text}]" if made else "AggregateReadings"
            made[window.length] = events | label >> AggregateReadings(window, firing), firing
        else:
            panes, of_shorter = made[shorter.length]
            of_longer = of_shorter.of_longer(shorter)
            made[window.length] = panes | f"RollUp[{window.text}]" >> RollUp(window, of_longer), of_longer
    return {length: panes for length, (panes, _) in made.items()}


def _label(step: str, targets: Sequence[Target], target: Target, tier: Tier | None = None) -> str:
    """Plain for the first table and a table's shortest windows; else with what it is for, like ``[t, window 1d]``."""
    marks = [] if target is targets[0] else [target.name.table]
    if tier is not None and tier is not target.schema.tiers[0]:
        marks.append(f"window {tier.window.text}")
    return f"{step}[{', '.join(marks)}]" if marks else step
