"""Builds the pipeline that the README pictures.

    messages ─ ProcessMessages ─┬─ WriteRawRows ─┬─ AggregateWindows ─┬─ RollUp, if any ─┬─ WriteOtherRows
                                │                │                    ├─ work list ───────┤
                                │                ├─ WatchAlerts, if asked for ────────────┘
                                │                └─ dead letters: rows that Bigtable refuses
                                └─ dead letters

Each table has a WriteRawRows and all that follows from it. An event counts once its raw row is written. From
WakeListed, AggregateWindows also gets the windows that backfills list; it writes the rows of its windows.

:mod:`pipeline.job.table_steps` has the steps of each table and their labels.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection

from pipeline.core.decoding.message_types import MessageTypes
from pipeline.job.settings import Settings, Target, runs_here
from pipeline.job.table_steps import TableSteps
from pipeline.transforms.alerts import PublishAlerts
from pipeline.transforms.process import ProcessMessages
from pipeline.transforms.tables import Clock
from pipeline.transforms.write import PublishResults, WriteDeadLetters, Written


class DerivedRows(NamedTuple):
    """The rows of one table that follow from its raw rows.

    Attributes:
        listed: ``EncodedRows`` of the work list.
        alerts: ``EncodedRows`` of alerts; None for a table that is not watched.
        rollups: ``EncodedRows`` of groups; None for a table without roll-ups.
    """

    listed: PCollection
    alerts: PCollection | None = None
    rollups: PCollection | None = None


class Outputs(NamedTuple):
    """The outputs of the graph.

    Attributes:
        derived: the derived rows of each table, in the order of the tables; None for a table without aggregates.
        dead_letters: ``Message`` elements.
        results: batches of windows' results to publish; None if the job publishes none.
        alerts: ``(rule, alert)`` to publish; None if the job watches nothing.
    """

    derived: list[DerivedRows | None]
    dead_letters: list[PCollection]
    results: PCollection | None = None
    alerts: PCollection | None = None


def build_graph(
    messages: PCollection,
    targets: Sequence[Target],
    settings: Settings,
    clock: Clock = time.time,
    began_us: int | None = None,
    types: MessageTypes | None = None,
    write_raw_rows: Callable[[TableSteps, PCollection], Written] = TableSteps.write_raw_rows,
    writer_of: Callable[[TableSteps, PipelineOptions], beam.DoFn] = TableSteps.aggregate_writer,
    *,
    noted: bool = False,
) -> Outputs:
    """Builds everything between the source and the sinks; raw rows and aggregate rows are written on the way.

    Args:
        messages: ``PubsubMessage`` elements.
        targets: the tables to write.
        settings: the job's settings.
        clock: the function that returns the current time.
        began_us: the time at which the job began, in microseconds since the epoch; None for a job that alone writes
            tables that were empty when it began.
        types: the message types; the built-in ones by default.
        write_raw_rows: adds the step that writes a table's raw rows.
        writer_of: returns the DoFn that writes a table's aggregate rows.
        noted: whether the job notes in its tables which windows are open: this process alone has their state.
    """
    raw_rows, dead_letters = messages | "ProcessMessages" >> _process_messages(targets, settings, clock, types)
    letters, derived, results, alerts = [dead_letters], list[DerivedRows | None](), None, None
    for table, raw in zip(TableSteps.of_each(targets, settings), raw_rows, strict=True):
        readings, refused = write_raw_rows(table, raw)
        letters += [refused] if refused is not None else []
        if not table.target.schema.tiers:
            derived.append(None)
            continue
        writer, listed = writer_of(table, messages.pipeline.options), table.wake_listed(readings, began_us, clock)
        aggregated = table.aggregate(readings, writer, began_us, clock, listed=listed, noted=noted)
        letters += [aggregated.dead_letters] if aggregated.dead_letters is not None else []
        results = aggregated.results if results is None else results
        watched = table.watch(readings, aggregated.results, began_us, clock)
        alerts = watched.alerts if watched else alerts
        rolled_up = table.roll_up(aggregated.contributions, clock)
        letters += rolled_up.dead_letters if rolled_up else []
        rows = aggregated.listed, watched and watched.rows, rolled_up and rolled_up.rows
        derived.append(DerivedRows(*rows))
    return Outputs(derived, letters, results, alerts)


def assemble(
    pipeline: beam.Pipeline,
    targets: Sequence[Target],
    settings: Settings,
    began_us: int,
    types: MessageTypes | None = None,
) -> None:
    """Builds the whole job: the source, the graph and the sinks. For the arguments see :func:`build_graph`."""
    messages = pipeline | "ReadMessages" >> ReadFromPubSub(
        topic=settings.input_topic,
        subscription=settings.input_subscription,
        id_label=settings.id_attribute,
        with_attributes=True,
        timestamp_attribute=settings.timestamp_attribute,
    )
    noted = runs_here(pipeline.options) and settings.input_subscription is not None
    outputs = build_graph(messages, targets, settings, began_us=began_us, types=types, noted=noted)
    write(outputs, targets, settings)


def write(outputs: Outputs, targets: Sequence[Target], settings: Settings) -> None:
    """Writes the graph's outputs: derived rows to their tables; results, alerts and dead letters to their topics."""
    if outputs.results is not None and settings.results is not None:
        results, declared = settings.results, targets[0].schema.declared
        _ = outputs.results | "PublishResults" >> PublishResults(results.topic, results.encoding, declared)
    if outputs.alerts is not None and settings.alerts_topic is not None:
        _ = outputs.alerts | "PublishAlerts" >> PublishAlerts(settings.alerts_topic)
    dead_letters = [*outputs.dead_letters]
    for table, derived in zip(TableSteps.of_each(targets, settings), outputs.derived, strict=True):
        if derived is not None:
            dead_letters += table.write_other_rows([rows for rows in derived if rows is not None])
    if settings.dead_letter_topic:
        letters = dead_letters | "DeadLetters" >> beam.Flatten() if len(dead_letters) > 1 else dead_letters[0]
        _ = letters | "WriteDeadLetters" >> WriteDeadLetters(settings.dead_letter_topic)


def _process_messages(
    targets: Sequence[Target], settings: Settings, clock: Clock, types: MessageTypes | None
) -> ProcessMessages:
    return ProcessMessages(
        [target.schema for target in targets],
        max_future=settings.max_future,
        clock=clock,
        types=types,
        newest_every=settings.newest_every,
    )
