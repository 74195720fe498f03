"""The flags of the job, parsed and checked once into typed settings."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import NamedTuple

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, StandardOptions

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables.table_guard import TableGuard
from pipeline.core.decoding.message_types import UnknownFields
from pipeline.core.events.message import EVENT_TYPE
from pipeline.core.panes.firing import (
    MOST_SPREAD_US,
    Aggregation,
    CommitLimits,
    FiringRules,
    RollupRules,
)
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.rate import phases_for
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import SchemaError, TableSchema
from pipeline.job.flags import FLAGS, PROJECT, BadFlag, TidetableOptions, values_of
from pipeline.job.result_flags import ResultFlags, alerts_topic, result_flags
from pipeline.job.saying import say
from pipeline.private_apis.beam_flags import CheckedFlags, UnreadableFlag, checked_flags

_MICROSECOND = timedelta(microseconds=1)

# The runners in place of DirectRunner, which would first try to download another one and then fall back to these.
STREAMING_RUNNER = "BundleBasedDirectRunner"
BOUNDED_RUNNER = "FnApiRunner"
_DATAFLOW_RUNNER = "DataflowRunner"

# Where a Flex Template's launcher stages its job: gs://BUCKET/staging/template_launches/JOB_ID/job_object.
_LAUNCHES = "/template_launches/"
# Names the file that the launcher runs. templates/Dockerfile sets it for every process of the image, workers included.
_LAUNCHED_FILE = "FLEX_TEMPLATE_PYTHON_PY_FILE"
_EMPTY_FLAG = re.compile(r"--\w+=")
_STATE_CACHE_MB = 100  # of each process of a worker; without a cache, each bundle waits for its group's state


class Target(NamedTuple):
    """A table to write.

    Attributes:
        name: the table's name.
        schema: the table's schema.
        retention: the retention of the table's cells; None if it follows from the schema's policies.
        table_id: the id of the table, which one that is created again lacks; empty if it is not known.
    """

    name: TableName
    schema: TableSchema
    retention: Retention | None = None
    table_id: bytes = b""

    @property
    def effective_retention(self) -> Retention:
        """The retention of the table's cells."""
        return self.retention or Retention.of(self.schema)

    def guard(self, every_s: float = 0.0) -> TableGuard:
        """Returns what tells a running job whether this is still its table, at most once in this time."""
        return TableGuard.of(self.name, self.schema, self.table_id, every_s)


class MessageFlags(NamedTuple):
    """The flags about the types of messages. ``read_types`` in ``checks`` reads the files.

    Attributes:
        mappings: paths of mappings.
        descriptors: paths of descriptors, and of schemas that Pub/Sub holds.
        decoder: ``module:function``, or None.
        default: the type of messages without the attribute ``message_type``; None if they are refused.
        unknown_fields: the treatment of fields that the built-in types do not have.
    """

    mappings: tuple[str, ...] = ()
    descriptors: tuple[str, ...] = ()
    decoder: str | None = None
    default: str | None = EVENT_TYPE
    unknown_fields: UnknownFields = "count"


@dataclass(frozen=True)
class Settings:
    """The settings of the job.

    Exactly one of the two inputs is set. Without a dead-letter topic, dead letters are dropped. Without ``results``,
    none are published. ``declared`` applies to each of the tables, at least one.
    """

    input_subscription: str | None
    input_topic: str | None
    timestamp_attribute: str | None
    id_attribute: str | None
    messages: MessageFlags
    dead_letter_topic: str | None
    results: ResultFlags | None
    alerts_topic: str | None
    tables: tuple[TableName, ...]
    declared: DeclaredSchema
    early_firing: timedelta
    late_firing: timedelta
    allowed_lateness: timedelta
    max_future: timedelta
    newest_every: timedelta
    bigtable_writer: str
    launch_checks: bool

    def aggregation_of(
        self,
        schema: TableSchema,
        before_us: int | None = None,
        results: ResultRules | None = None,
        *,
        here: bool = True,
    ) -> Aggregation:
        """Returns the settings by which a table's windows are aggregated.

        Args:
            schema: the schema of a table with windows.
            before_us: the time before which windows start that the table may store already; None if it stores none.
            results: the rules by which results are published; None to publish none.
            here: whether the job runs in this process, where groups fire one after the other, and commit to memory.
        """
        window_us = schema.tiers[0].window.length_us
        firing = FiringRules(
            schema.tiers[0].window,
            self.early_firing // _MICROSECOND,
            self.late_firing // _MICROSECOND,
            self.allowed_lateness // _MICROSECOND,
            phases_for(schema.shards_of_rollups) if schema.rollups else None,  # a shard merges all its sensors at once
            0 if here else min(MOST_SPREAD_US, window_us // 8),
            None if here else CommitLimits(),
        )
        rollups = RollupRules.of(schema)
        return Aggregation(schema.tiers, firing, before_us, schema.latest, results, rollups)


def parse_flags(argv: Sequence[str]) -> PipelineOptions:
    """Parses a command line into Beam's options for a streaming job, with the runner set.

    In a Flex Template's launcher, unknown flags are ignored with a warning, since a later launcher may pass flags of
    its own. There, a flag with an empty value counts as not set: that is how an empty optional parameter arrives.

    Raises:
        BadFlag: a flag is unknown to us and to Beam, or has a value that Beam's parser refuses.
    """
    argv = [_underscored(argument) for argument in argv]
    if is_flex_launch(_template_location(argv)):
        argv = _without_unknown([argument for argument in argv if not _EMPTY_FLAG.fullmatch(argument)])
    else:
        refuse_unknown(argv)
    options = options_of(argv)
    options.view_as(StandardOptions).streaming = True
    choose_runner(options, STREAMING_RUNNER)
    return options


def _underscored(argument: str) -> str:
    """Returns an argument with its flag, if it has one, in Beam's spelling."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def options_of(argv: Sequence[str]) -> PipelineOptions:
    """Returns Beam's options of a command line, which comes after what we set for each job, and so decides."""
    return PipelineOptions([f"--max_cache_memory_usage_mb={_STATE_CACHE_MB}", *argv])


def choose_runner(options: PipelineOptions, direct_runner: str) -> None:
    """Sets the runner that ``--runner`` names, DirectRunner by default.

    Args:
        options: changed in place.
        direct_runner: the runner in place of DirectRunner: :data:`STREAMING_RUNNER` or :data:`BOUNDED_RUNNER`.

    Raises:
        BadFlag: the flag names any other runner.
    """
    standard = options.view_as(StandardOptions)
    runners = {_short_name(name): direct_runner for name in ("DirectRunner", "SwitchingDirectRunner", direct_runner)}
    runners[_short_name(_DATAFLOW_RUNNER)] = _DATAFLOW_RUNNER
    runner = runners.get(_short_name(standard.runner or "DirectRunner"))
    if runner is None:
        raise BadFlag(f"--runner is {standard.runner!r}; it has to be DirectRunner or DataflowRunner")
    standard.runner = runner


def _short_name(runner: str) -> str:
    """Returns the name without module, case and suffix: Beam accepts all of these spellings."""
    return runner.rpartition(".")[2].lower().removesuffix("runner")


def runs_here(options: PipelineOptions) -> bool:
    """Returns whether the job runs in this process, on the runner that :func:`choose_runner` set."""
    return options.view_as(StandardOptions).runner != _DATAFLOW_RUNNER


def is_flex_launch(template_location: str | None) -> bool:
    """Returns whether a Flex Template's launcher runs this process. Dataflow then starts the job at once.

    A classic template, which also has a ``--template_location``, may be started at any time.
    """
    launched = os.environ.get(_LAUNCHED_FILE)
    return _LAUNCHES in (template_location or "") or (
        launched is not None and os.path.realpath(launched) == os.path.realpath(sys.argv[0])
    )


def _template_location(argv: Sequence[str]) -> str | None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--template_location", nargs="?")
    location: str | None = parser.parse_known_args(list(argv))[0].template_location
    return location


def refuse_unknown(argv: Sequence[str], *, ours: bool = True) -> None:
    """Refuses unknown flags, which Beam itself only logs.

    Args:
        argv: the flags.
        ours: whether our own flags and ``--help`` are accepted, not only Beam's.

    Raises:
        BadFlag: a flag is unknown, or has a value that Beam's parser refuses.
    """
    unknown, declared = _checked(argv, ours=ours)
    if unknown:
        raise BadFlag(_unknown_argument(unknown[0], declared))


def _without_unknown(argv: Sequence[str]) -> list[str]:
    """Returns the command line without unknown flags, after a warning for each."""
    unknown, declared = _checked(argv, ours=True)
    for argument in unknown:
        say(f"{_unknown_argument(argument, declared)}; ignored", "WARNING")
    # The value after an unknown flag stays: it may equal the value of another flag, and Beam skips it.
    return [argument for argument in argv if not (argument.startswith("--") and argument in unknown)]


def _checked(argv: Sequence[str], *, ours: bool) -> CheckedFlags:
    try:
        return checked_flags(argv, TidetableOptions, accept_own=ours)
    except UnreadableFlag as error:
        raise BadFlag(str(error)) from error


def _unknown_argument(argument: str, declared: Sequence[str]) -> str:
    near = difflib.get_close_matches(argument.partition("=")[0], declared, n=1)
    return f"unknown argument {argument}" + (f"; did you mean {near[0].replace('_', '-')}?" if near else "")


def settings_of(options: PipelineOptions) -> Settings:
    """Returns the settings that the flags define.

    Raises:
        BadFlag: the first flag that is invalid, missing, or in conflict with another.
    """
    flags = values_of(options)
    project = options.view_as(GoogleCloudOptions).project
    if project is not None:
        PROJECT.value("--project", project)
    if bool(flags.input_subscription) == bool(flags.input_topic):
        raise BadFlag("exactly one of --input-subscription and --input-topic is needed")
    if flags.id_attribute and runs_here(options):
        raise BadFlag("--id-attribute works on Dataflow only; Beam's DirectRunner can't de-duplicate messages")
    return Settings(
        input_subscription=flags.input_subscription,
        input_topic=flags.input_topic,
        timestamp_attribute=flags.timestamp_attribute,
        id_attribute=flags.id_attribute,
        messages=_messages(flags),
        dead_letter_topic=_dead_letter_topic(flags),
        results=result_flags(flags),
        alerts_topic=alerts_topic(flags),
        tables=_tables(flags, flags.bigtable_project or project),
        declared=_declared(flags),
        early_firing=flags.early_firing,
        late_firing=flags.late_firing,
        allowed_lateness=flags.allowed_lateness,
        max_future=flags.max_future,
        newest_every=flags.newest_every,
        bigtable_writer=flags.bigtable_writer,
        launch_checks=flags.launch_checks == "on",
    )


def _messages(flags: SimpleNamespace) -> MessageFlags:
    mappings, decoder, default = flags.message_mapping, flags.message_decoder, flags.default_message_type
    if flags.message_descriptors and not mappings:
        raise BadFlag("--message-descriptors needs --message-mapping, which defines how its messages become events")
    if not (default or mappings or decoder):
        default = EVENT_TYPE
    return MessageFlags(mappings, flags.message_descriptors, decoder, default, flags.unknown_fields)


def _tables(flags: SimpleNamespace, project: str | None) -> tuple[TableName, ...]:
    if not project:
        raise BadFlag("--bigtable-project or --project is needed: the project of the Bigtable instance")
    for name in ("bigtable_instance", "bigtable_table"):
        if not getattr(flags, name):
            raise BadFlag(f"{FLAGS[name].option} is needed")
    tables = flags.bigtable_table
    if twice := [table for table in tables if tables.count(table) > 1]:
        raise BadFlag(f"--bigtable-table names {twice[0]} twice")
    return tuple(TableName(project, flags.bigtable_instance, table, flags.app_profile or "") for table in tables)


def _declared(flags: SimpleNamespace) -> DeclaredSchema:
    names = {"raw": flags.raw_family, "stats": flags.stats_family, "meta": flags.meta_family}
    if len({kind if name is None else name for kind, name in names.items()}) < len(names):
        raise BadFlag("--raw-family, --stats-family and --meta-family must be three different families")
    declared = DeclaredSchema(flags.schema is not None, window=flags.window, **names)
    try:
        declared.schema()
    except SchemaError as error:
        raise BadFlag(f"--raw-family, --stats-family and --meta-family: {error}") from error
    return declared


def _dead_letter_topic(flags: SimpleNamespace) -> str | None:
    topic: str | None = flags.dead_letter_topic
    if flags.dead_letters == "drop":
        return None
    if topic is None:
        raise BadFlag("--dead-letter-topic is needed; or set --dead-letters=drop to drop dead letters")
    if topic == flags.input_topic:
        raise BadFlag("--dead-letter-topic is --input-topic: each dead letter would be read and refused again")
    return topic
