"""Tidetable: sensor events from Pub/Sub to raw rows and windowed aggregates in Bigtable.

Packages. Each imports only from those on the lines below it. The first line has the features: none imports another.

    backfill, dead_letters, local, reading, repair, table    a folder for each feature, with its command
    cli, charts   the root of the ``tidetable`` command line, and what its commands share
    job           ``python -m pipeline``: flags, launch checks, the graph, running and stopping it
    transforms    Beam transforms, thin shells around the core
    private_apis  what is used of the private parts of Beam and Google's clients, a module for each
    cloud         Bigtable and Pub/Sub through Google's clients: tables, policies, publishing, reading rows back
    formats       files of records as sensor events: CSV, NDJSON, length-delimited protobuf, Avro, Parquet
    core          events, rows, statistics, dead letters: plain functions on plain data
    proto         generated protobuf classes
"""

from pipeline.core.events.refusals import RefusedMessage as RefusedMessage

__version__ = "0.1.0"
