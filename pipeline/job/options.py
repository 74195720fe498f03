"""The declaration of the job's own flags, of which the options of ``tidetable run`` are made too."""

import argparse

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.core.events.message import EVENT_TYPE


class TidetableOptions(PipelineOptions):
    """The job's own flags, which are added to Beam's."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("Input")
        group.add_argument(
            "--input_subscription", metavar="PATH", help="The subscription to read from, projects/P/subscriptions/S."
        )
        group.add_argument(
            "--input_topic",
            metavar="PATH",
            help="The topic to read from, projects/P/topics/T, instead of a subscription.",
        )
        group.add_argument("--timestamp_attribute", metavar="NAME", help="Attribute whose time drives the watermark.")
        group.add_argument(
            "--id_attribute", metavar="NAME", help="Attribute by which Dataflow removes redelivered messages."
        )
        group.add_argument(
            "--max_future", default="1h", metavar="DURATION", help="How far ahead of the clock an event time may be."
        )
        group = parser.add_argument_group("Message types")
        group.add_argument(
            "--message_mapping",
            action="append",
            metavar="FILE",
            help="TOML file that maps messages to events, local or gs://; repeatable, or separated by commas.",
        )
        group.add_argument(
            "--message_descriptors",
            action="append",
            metavar="FILE",
            help="FileDescriptorSet of mapped types, local or gs://, or projects/P/schemas/S; repeatable too.",
        )
        group.add_argument(
            "--message_decoder",
            metavar="MODULE:FUNCTION",
            help="Function that makes events of messages that no mapping takes; the image must contain it.",
        )
        group.add_argument(
            "--default_message_type",
            metavar="NAME",
            help=f"Type of messages without the attribute message_type; {EVENT_TYPE} by default, but none with "
            "mappings or a decoder.",
        )
        group.add_argument(
            "--unknown_fields",
            default="count",
            metavar="count|refuse",
            help="Count fields that SensorEvent does not have, or refuse their events, which become dead letters.",
        )
        group = parser.add_argument_group("Dead letters")
        group.add_argument(
            "--dead_letter_topic", metavar="PATH", help="The topic of dead letters, projects/P/topics/T."
        )
        group.add_argument(
            "--dead_letters",
            default="publish",
            metavar="publish|drop",
            help="Publish dead letters, or drop them and only count them.",
        )
        group = parser.add_argument_group("Table")
        group.add_argument(
            "--bigtable_project", metavar="ID", help="Project of the Bigtable instance; --project by default."
        )
        group.add_argument("--bigtable_instance", metavar="ID", help="Bigtable instance.")
        group.add_argument(
            "--bigtable_table",
            action="append",
            metavar="ID",
            help="Bigtable table; repeatable, or several separated by commas.",
        )
        group.add_argument(
            "--schema", metavar="default", help="The word default: a table that stores no schema has the default one."
        )
        for family, contents in (("raw", "readings"), ("stats", "aggregates"), ("meta", "metadata")):
            group.add_argument(
                f"--{family}_family", metavar="NAME", help=f"Family of {contents}; {family} in the default schema."
            )
        group = parser.add_argument_group("Windows")
        group.add_argument(
            "--window",
            metavar="DURATION",
            help="Length of the shortest windows; must divide a day; 1h in the default schema.",
        )
        group.add_argument(
            "--early_firing", default="5m", metavar="DURATION", help="Interval of early panes; 0 for none."
        )
        group.add_argument(
            "--late_firing",
            default="60s",
            metavar="DURATION",
            help="Interval of late panes, and of recomputing windows for later events; 0 for immediately.",
        )
        group.add_argument(
            "--allowed_lateness",
            default="10m",
            metavar="DURATION",
            help="How long a window stays in state for late events; for later ones it is recomputed from raw rows.",
        )
        group = parser.add_argument_group("Results")
        group.add_argument(
            "--results_topic", metavar="PATH", help="The topic of the results of finished windows, projects/P/topics/T."
        )
        group.add_argument(
            "--results",
            default="final",
            metavar="final|all",
            help="Final results, when a window is over and at each correction, or all, with early panes.",
        )
        group.add_argument(
            "--results_encoding",
            default="protobuf",
            metavar="protobuf|json",
            help="Encoding of results: tidetable.v1.WindowResult, or its JSON form.",
        )
        group = parser.add_argument_group("Alerts")
        group.add_argument(
            "--alerts_topic",
            metavar="PATH",
            help="The topic of alerts, projects/P/topics/T. The table stores their rules.",
        )
        group = parser.add_argument_group("Writing and starting")
        group.add_argument(
            "--bigtable_writer",
            default="connector",
            metavar="connector|bulk",
            help="Beam's own connector, or bulk, our own, which sends more rows in a request.",
        )
        group.add_argument(
            "--newest_every",
            default="0",
            metavar="DURATION",
            help="Least time between a sensor's rows of newest readings, beside panes; 0 to write them with raw rows.",
        )
        group.add_argument("--app_profile", metavar="ID", help="App profile of all reads and writes of the tables.")
        group.add_argument(
            "--launch_checks",
            default="on",
            metavar="on|off",
            help="Off starts without asking the servers, and takes the schema of every table from the options.",
        )
