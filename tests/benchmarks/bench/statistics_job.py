"""(8) Tidetable with statistics that need more than a few numbers of a window."""

from collections.abc import Callable

from apache_beam.io.gcp.pubsub import PubsubMessage

from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.toml import parse_schema
from tests.benchmarks.bench import tidetable

SCHEMA = parse_schema('[statistics]\nother = ["p50", "p95", "p99", "first", "last", "increase"]')


def prepare(messages: list[PubsubMessage], *more: str) -> Callable[[TableName], Callable[[], None]]:
    """Returns what ``tidetable.prepare`` does, for a table whose schema declares these statistics of all metrics."""
    return tidetable.prepare(messages, *more, schema=SCHEMA)
