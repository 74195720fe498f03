"""Fills the rows of newest readings of a table to which their family was added."""

import time

import click

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.queries.events import Query, events_of_all
from pipeline.core.queries.reads import ForeignRows
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema

_MOST_HELD = 50_000  # events, before their sensors' rows are written


def fill_newest(name: TableName, schema: TableSchema, family: str) -> None:
    """Writes each sensor's newest readings by one scan of all raw rows, and prints how many events it has read.

    Newer readings that a job writes meanwhile stay: Bigtable keeps the newest cell. Raises ServerProblem if the table
    is out of reach or refuses rows.
    """
    click.echo(
        f"reading all raw rows to fill {family}; if this ends early, 'tidetable repair' of all times does the rest",
        err=True,
    )
    from_us = Retention.of(schema).cells_stay_from_us(family, time.time_ns() // 1000)
    newest, foreign, events = NewestReadings(), ForeignRows(), 0
    with RowReader.open(name) as reader, BulkWriter.open(name) as writer:
        for record in events_of_all(schema, reader.read_selection, Query(), foreign.add):
            newest.add(record.sensor_id, record.event_time_us, record.readings.items())
            if schema.metadata_alone:
                newest.add_metadata(record.sensor_id, record.event_time_us, record.metadata)
            events += 1
            if events % _MOST_HELD == 0:
                writer.add_encoded(list(newest.rows(family, from_us)))
                newest = NewestReadings()
        writer.add_encoded(list(newest.rows(family, from_us)))
        if refused := writer.finish():
            raise ServerProblem(f"table {name}: row {refused[0].key.decode()} was refused: {refused[0].message}")
    click.echo(f"{family}: filled from {events:,} events; update the running job, which writes it from then on")
