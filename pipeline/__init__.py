"""Tidetable: sensor events from Pub/Sub to raw rows and windowed aggregates in Bigtable.

``from pipeline import SensorTable`` is the Python API. The packages, from the top down (a package imports from those
below it; features, the first thirteen, do not import each other):

    alerts        stores, checks and shows the rules of alerts, and delivers alerts
    backfill      writes readings from files to a table, as if they had been streamed
    dead_letters  lists, exports and replays dead letters
    forget        removes every row of a sensor
    local         starts emulators, simulates a fleet, publishes files, and runs the demo
    mapping       checks mappings, tries them on messages, and drafts them
    plan          estimates size and cost
    reading       prints or draws what a table contains
    repair        recomputes aggregate rows from their raw rows
    results       prints the results of finished windows as they come
    run           the streaming job as a command
    serve         an HTTP API over a table, and a page for the browser
    table         creates, adopts, compares, describes and deletes tables
    delivery      sends alerts to a URL
    cli           the root of the ``tidetable`` command line, and what its commands share
    charts        draws time series, for a terminal or as a PNG
    job           ``python -m pipeline``: flags, launch checks, the graph, running and stopping it
    transforms    Beam transforms, thin shells around the core
    private_apis  all code that relies on private parts of Beam, of Google's clients and of uvicorn
    cloud         Bigtable and Pub/Sub through Google's clients: tables, policies, reads, writes, publishing
    formats       files of records as sensor events: CSV, NDJSON, length-delimited protobuf, Avro, Parquet
    core          events, rows, statistics, windows, dead letters: functions on plain data
    proto         generated protobuf classes
"""

TYPE_CHECKING = False  # as typing's: an import of this package imports nothing else
if TYPE_CHECKING:
    from pipeline.cloud.connection.problems import ServerError as ServerError
    from pipeline.cloud.reading.reader import ForeignRowError as ForeignRowError
    from pipeline.cloud.reading.reader import SensorTable as SensorTable
    from pipeline.core.alerts.alert_rows import AlertRecord as AlertRecord
    from pipeline.core.answers.points import Points as Points
    from pipeline.core.events.reasons import RefusedMessageError as RefusedMessageError
    from pipeline.core.queries.reads import TooManyRowsError as TooManyRowsError
    from pipeline.core.rows.newest_row import LatestRecord as LatestRecord
    from pipeline.core.rows.records import AggregateRecord as AggregateRecord
    from pipeline.core.rows.records import GroupRecord as GroupRecord
    from pipeline.core.rows.records import MetricSummary as MetricSummary
    from pipeline.core.rows.records import RawRecord as RawRecord
    from pipeline.core.rows.records import SensorGroup as SensorGroup
    from pipeline.proto.sensor_event_pb2 import SensorEvent as SensorEvent
else:
    _HOMES = {
        "AggregateRecord": "core.rows.records",
        "AlertRecord": "core.alerts.alert_rows",
        "ForeignRowError": "cloud.reading.reader",
        "GroupRecord": "core.rows.records",
        "LatestRecord": "core.rows.newest_row",
        "MetricSummary": "core.rows.records",
        "Points": "core.answers.points",
        "RawRecord": "core.rows.records",
        "RefusedMessageError": "core.events.reasons",
        "SensorEvent": "proto.sensor_event_pb2",
        "SensorGroup": "core.rows.records",
        "SensorTable": "cloud.reading.reader",
        "ServerError": "cloud.connection.problems",
        "TooManyRowsError": "core.queries.reads",
    }
    __all__ = list(_HOMES)

    def __getattr__(name):
        """Imports a name of the API when it is first used."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


__version__ = "0.1.0"
