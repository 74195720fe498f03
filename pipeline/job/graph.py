"""The pipeline itself: this module is the picture in the README.

    messages ─ ProcessMessages ─┬─────────────────────────────────────────────── raw rows         ┐ of each
                                ├─ AggregateReadings ─┬─ FormatAggregateRows ─── aggregate rows   │ table
                                │                     └─ RollUp ── … and so on for longer windows ┘
                                └─────────────────────────────────────────────── dead letters

Every label is fixed: Dataflow matches a running job's steps to an update's by their labels.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.pvalue import PCollection

from pipeline.core.schema.table_schema import Tier
from pipeline.job.settings import Settings, Target
from pipeline.job.windows import aggregate
from pipeline.transforms.bulk import BulkWriteRows
from pipeline.transforms.decode import Clock
from pipeline.transforms.late import ListWindows
from pipeline.transforms.process import ProcessMessages
from pipeline.transforms.rows import FormatAggregateRows
from pipeline.transforms.write import WriteDeadLetters, WriteRows


class TableRows(NamedTuple):
    """For one table: ``EncodedRows`` of events and of windows to repair, and ``Row`` elements of aggregates.

    Attributes:
        raw: of events, and of windows that such an event may have missed.
        listed: of further windows to repair.
        aggregates: of each tier's windows.
    """

    raw: PCollection
    listed: list[PCollection]
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
    process = ProcessMessages(
        [target.schema for target in targets],
        max_future=settings.max_future,
        allowed_lateness=settings.allowed_lateness,
        # Where an attribute drives the watermark, events ahead of the clock may drive it past the clock.
        ahead=settings.max_future if settings.timestamp_attribute else timedelta(0),
        deduplicate=settings.deduplicate,
        clock=clock,
    )
    raw_rows, gathered, dead_letters = messages | "ProcessMessages" >> process
    rows = []
    for target, of_table, to_aggregate in zip(targets, raw_rows, gathered, strict=True):
        aggregates = aggregate(to_aggregate, target, settings, began_us, _label("", targets, target))
        aggregate_rows = {
            tier: panes | _label("FormatAggregateRows", targets, target, tier) >> FormatAggregateRows(tier)
            for tier, panes in aggregates.panes.items()
        }
        listed = [
            incomplete | _label(f"ListWindows{index or ''}", targets, target) >> ListWindows(target.schema)
            for index, incomplete in enumerate(aggregates.incomplete)
        ]
        rows.append(TableRows(of_table, listed, aggregate_rows))
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
    dead_letters = [outputs.dead_letters]
    for target, rows in zip(targets, outputs.rows, strict=True):
        raw_rows = (rows.raw, *rows.listed) | _label("WithListed", targets, target) >> beam.Flatten()
        dead_letters += _write_rows(raw_rows, _label("WriteRawRows", targets, target), target, settings)
        for tier, aggregate_rows in rows.aggregates.items():
            label = _label("WriteAggregateRows", targets, target, tier)
            dead_letters += _write_rows(aggregate_rows, label, target, settings)
    if settings.dead_letter_topic:
        letters = dead_letters | "DeadLetters" >> beam.Flatten() if len(dead_letters) > 1 else dead_letters[0]
        _ = letters | "WriteDeadLetters" >> WriteDeadLetters(settings.dead_letter_topic)


def _write_rows(rows: PCollection, label: str, target: Target, settings: Settings) -> list[PCollection]:
    """Into the table, by the writer that is asked for; the dead letters of rows that it refuses, where there can be."""
    name = target.name
    if settings.bigtable_writer == "bulk":
        write = BulkWriteRows(name.project, name.instance, name.table, settings.app_profile, schema=target.schema)
        return [rows | label >> write]
    _ = rows | label >> WriteRows(name.project, name.instance, name.table)
    return []


def _label(step: str, targets: Sequence[Target], target: Target, tier: Tier | None = None) -> str:
    """Plain for the first table and a table's shortest windows; else with what it is for, like ``[t, window 1d]``."""
    marks = [] if target is targets[0] else [target.name.table]
    if tier is not None and tier is not target.schema.tiers[0]:
        marks.append(f"window {tier.window.text}")
    return f"{step}[{', '.join(marks)}]" if marks else step
