"""The pipeline itself: this page is the picture in the README.

    messages ─ DecodeMessages ─┬─ FormatRawRows ────────────────────────────── raw rows
                               ├─ AggregateReadings ── FormatAggregateRows ─── aggregate rows
                               └────────────────────────────────────────────── dead letters

Every label is fixed: Dataflow matches a running job's steps to an update's by their labels.
"""

import time
from typing import NamedTuple

import apache_beam as beam
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.pvalue import PCollection

from pipeline.job.settings import Settings
from pipeline.transforms.aggregate import AggregateReadings
from pipeline.transforms.decode import Clock, DecodeMessages
from pipeline.transforms.rows import FormatAggregateRows, FormatRawRows
from pipeline.transforms.write import WriteDeadLetters, WriteRows


class Outputs(NamedTuple):
    """What the graph makes: ``Row`` elements twice, and ``Message`` elements."""

    raw_rows: PCollection
    aggregate_rows: PCollection
    dead_letters: PCollection


def build_graph(messages: PCollection, settings: Settings, clock: Clock = time.time) -> Outputs:
    """From ``PubsubMessage`` elements to everything that is to be written."""
    events, dead_letters = messages | "DecodeMessages" >> DecodeMessages(settings.max_future, clock)
    raw_rows = events | "FormatRawRows" >> FormatRawRows(settings.families)
    aggregate_rows = (
        events
        | "AggregateReadings"
        >> AggregateReadings(settings.window, settings.early_firing, settings.late_firing, settings.allowed_lateness)
        | "FormatAggregateRows" >> FormatAggregateRows(settings.window, settings.families)
    )
    return Outputs(raw_rows, aggregate_rows, dead_letters)


def assemble(pipeline: beam.Pipeline, settings: Settings) -> None:
    """The whole job: the graph between its source and its sinks."""
    messages = pipeline | "ReadMessages" >> ReadFromPubSub(
        topic=settings.input_topic,
        subscription=settings.input_subscription,
        id_label=settings.id_attribute,
        with_attributes=True,
        timestamp_attribute=settings.timestamp_attribute,
    )
    outputs = build_graph(messages, settings)
    table = settings.table.project, settings.table.instance, settings.table.table
    _ = outputs.raw_rows | "WriteRawRows" >> WriteRows(*table)
    _ = outputs.aggregate_rows | "WriteAggregateRows" >> WriteRows(*table)
    if settings.dead_letter_topic:
        _ = outputs.dead_letters | "WriteDeadLetters" >> WriteDeadLetters(settings.dead_letter_topic)
