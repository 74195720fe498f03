"""The pipeline itself: this page is the picture in the README.

    messages ─ DecodeMessages ─┬─ FormatRawRows ──────────────────────────────── raw rows         ┐
                               ├─ RecordLateWindows ──────────────────────────── windows to repair│ of each
                               ├─ AggregateReadings ─┬─ FormatAggregateRows ──── aggregate rows   │ table
                               │                     └─ RollUp ── … and so on for longer windows  ┘
                               └──────────────────────────────────────────────── dead letters

Every label is fixed: Dataflow matches a running job's steps to an update's by their labels.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.pvalue import PCollection

from pipeline.core.schema.table_schema import Tier
from pipeline.core.windows import HOURLY
from pipeline.job.settings import Settings, Target
from pipeline.job.windows import Aggregates, aggregate, counted_as
from pipeline.transforms.decode import Clock, DecodeMessages
from pipeline.transforms.late import ListWindows, RecordLateWindows
from pipeline.transforms.rows import FormatAggregateRows, FormatRawRows
from pipeline.transforms.write import WriteDeadLetters, WriteRows


class TableRows(NamedTuple):
    """``Row`` elements for one table: of events, of the list of windows to repair, and of each tier's windows."""

    raw: PCollection
    late: list[PCollection]
    aggregates: Mapping[Tier, PCollection]


class Outputs(NamedTuple):
    """What the graph makes: rows for each table, in the order of the tables, and ``Message`` elements."""

    rows: list[TableRows]
    dead_letters: PCollection


def build_graph(
    messages: PCollection,
    targets: Sequence[Target],
    settings: Settings,
    clock: Clock = time.time,
    began_us: int | None = None,
) -> Outputs:
    """From ``PubsubMessage`` elements to everything that is to be written.

    Args:
        messages: what is read.
        targets: what is written.
        settings: how.
        clock: what time it is.
        began_us: when the job began; None for a job whose tables are empty, and nobody else's.
    """
    schemas = [target.schema for target in targets]
    events, dead_letters = messages | "DecodeMessages" >> DecodeMessages(settings.max_future, schemas, clock)
    aggregates = aggregate(events, targets, settings, began_us)
    rows = []
    for target in targets:
        raw_rows = events | _label("FormatRawRows", targets, target) >> FormatRawRows(target.schema)
        late_rows = _late_rows(events, aggregates, targets, target, settings, clock)
        aggregate_rows = {
            tier: aggregates.panes[tier.window.length]
            | _label("FormatAggregateRows", targets, target, tier) >> FormatAggregateRows(tier)
            for tier in target.schema.tiers
        }
        rows.append(TableRows(raw_rows, late_rows, aggregate_rows))
    return Outputs(rows, dead_letters)


def assemble(pipeline: beam.Pipeline, targets: Sequence[Target], settings: Settings, began_us: int) -> None:
    """The whole job: the graph between its source and its sinks. ``began_us`` is as for :func:`build_graph`."""
    messages = pipeline | "ReadMessages" >> ReadFromPubSub(
        topic=settings.input_topic,
        subscription=settings.input_subscription,
        id_label=settings.id_attribute,
        with_attributes=True,
        timestamp_attribute=settings.timestamp_attribute,
    )
    write(build_graph(messages, targets, settings, began_us=began_us), targets, settings)


def write(outputs: Outputs, targets: Sequence[Target], settings: Settings) -> None:
    """Everything that the graph makes into its sinks."""
    for target, rows in zip(targets, outputs.rows, strict=True):
        table = target.name.project, target.name.instance, target.name.table
        raw_and_late = (rows.raw, *rows.late) | _label("WithLateWindows", targets, target) >> beam.Flatten()
        _ = raw_and_late | _label("WriteRawRows", targets, target) >> WriteRows(*table)
        for tier, aggregate_rows in rows.aggregates.items():
            _ = aggregate_rows | _label("WriteAggregateRows", targets, target, tier) >> WriteRows(*table)
    if settings.dead_letter_topic:
        _ = outputs.dead_letters | "WriteDeadLetters" >> WriteDeadLetters(settings.dead_letter_topic)


def _late_rows(
    events: PCollection,
    aggregates: Aggregates,
    targets: Sequence[Target],
    target: Target,
    settings: Settings,
    clock: Clock,
) -> list[PCollection]:
    """Rows of the target's work list: of events that come too late, and of windows that may lack something."""
    tiers = target.schema.tiers
    counted = counted_as(tiers[0].window, targets) if tiers else HOURLY
    record_late = RecordLateWindows(target.schema, counted, settings.allowed_lateness, clock)
    rows = [events | _label("RecordLateWindows", targets, target) >> record_late]
    for index, unsure in enumerate(aggregates.unsure if tiers else []):
        label = _label(f"ListWindows{index or ''}", targets, target)
        rows.append(unsure | label >> ListWindows(tiers[0]))
    return rows


def _label(step: str, targets: Sequence[Target], target: Target, tier: Tier | None = None) -> str:
    """Plain for the first table and a table's shortest windows; else with what it is for, like ``[t, window 1d]``."""
    marks = [] if target is targets[0] else [target.name.table]
    if tier is not None and tier is not target.schema.tiers[0]:
        marks.append(f"window {tier.window.text}")
    return f"{step}[{', '.join(marks)}]" if marks else step
