"""(4) and (5) Tidetable's own graph, from messages to both sinks, with the settings of its flags."""

from collections.abc import Callable

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.bench import source
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.checks import read_types
from pipeline.job.graph import build_graph, write
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.local_runner import LocalRunner
from tests.support.shuffled import shuffled


def flags(name: TableName, *more: str) -> list[str]:
    """Returns a command line of default flags without early panes: FnApiRunner has no processing time."""
    return [
        "--runner=DirectRunner",
        f"--project={name.project}",
        f"--input_subscription=projects/{name.project}/subscriptions/none",
        "--dead_letters=drop",
        f"--bigtable_instance={name.instance}",
        f"--bigtable_table={name.table}",
        "--early_firing=0",
        "--late_firing=0",
        *more,
    ]


def prepare(
    messages: list[PubsubMessage], *more: str, schema: TableSchema | None = None
) -> Callable[[TableName], Callable[[], None]]:
    """Returns a function that builds the pipeline for a table and returns the function that runs it.

    Args:
        messages: what the pipeline reads.
        more: flags.
        schema: of the table; by default the one that the flags declare.
    """
    source.held = messages

    def build(name: TableName) -> Callable[[], None]:
        settings = settings_of(parse_flags(flags(name, *more)))
        types = read_types(settings.messages)
        targets = [Target(table, schema or settings.declared.schema()) for table in settings.tables]
        pipeline = beam.Pipeline(LocalRunner(), PipelineOptions([]))
        # The steady state of a job: it saw all of its windows begin, and restores none.
        with shuffled():
            outputs = build_graph(pipeline | source.ReadHeld(), targets, settings, began_us=None, types=types)
        write(outputs, targets, settings)

        def run() -> None:
            with shuffled():
                pipeline.run().wait_until_finish()

        return run

    return build
