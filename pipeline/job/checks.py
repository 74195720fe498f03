"""Launch checks: everything that the job uses must exist before it reads a message."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from google.api_core.exceptions import PermissionDenied
from google.cloud import pubsub_v1

from pipeline.cloud.connection.emulators import PUBSUB, check_emulator
from pipeline.cloud.connection.errors import ServerError, explained
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.pubsub.message_files import load_descriptors, load_message_types
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.alert_store import read_rules
from pipeline.cloud.tables.retention_notes import noted_id, record_job, record_lateness, record_losses, retention_of
from pipeline.cloud.tables.schema_store import has_rows, read_schema, schema_of
from pipeline.core.alerts.alert_rows import FAMILY as ALERT_FAMILY
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.message_types import DecoderFunction, MessageTypes
from pipeline.core.events.invalid_readings import RangeCheck
from pipeline.core.panes.group_sizes import commit_problem
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.gc_policies import Policy, format_policy, keeps_one_version, same_policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.sizing import rollup_problem, state_problem
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.job.flags import BadFlag
from pipeline.job.saying import say
from pipeline.job.settings import MessageFlags, Settings, Target

_TIMEOUT_S = 10.0
_MICROSECOND = timedelta(microseconds=1)


_NO_FILE = "messages have no file; backfill reads files by this mapping, and publish sends the events that it makes"
_NO_ORDER = '"order" is for the records of files; messages come in any order, so take "first" or "second"'


def read_types(flags: MessageFlags) -> MessageTypes:
    """Returns the types of messages, with every mapping compiled.

    Raises:
        BadFlag: a mapping or a descriptor is invalid, the function is missing, or the default type is unknown.
        ServerError: a bucket or Pub/Sub is out of reach, or lacks the file or schema.
    """
    with _blamed_on("--message-descriptors"):
        files = load_descriptors(flags.descriptors)
    with _blamed_on("--message-mapping"):
        mapped = load_message_types(flags.mappings, files)
        for one in mapped:
            if one.mapping.by_order:
                raise MappingError(f"{one.file}: time.ambiguous", _NO_ORDER)
            if one.mapping.of_file:
                raise MappingError(f"{one.file}: {one.mapping.of_file}", _NO_FILE)
    with _blamed_on("--message-decoder"):
        decoder = DecoderFunction(flags.decoder) if flags.decoder else None
    with _blamed_on("--default-message-type"):
        return MessageTypes(mapped, decoder, flags.default, flags.unknown_fields)


@contextmanager
def _blamed_on(flag: str) -> Iterator[None]:
    try:
        yield
    except MappingError as error:
        raise BadFlag(f"{flag}: {error}") from error


def read_targets(settings: Settings) -> tuple[Target, ...]:
    """Returns the tables with the schemas that they store; with ``--launch-checks=off``, with the flags' schema.

    Needs ``bigtable.tables.get`` and ``bigtable.tables.readRows``. Warns on standard error if the policies of a table
    differ from its schema's. The policies of unchecked tables are unknown, so their raw rows are not relied on.

    Raises:
        ServerError: a table is missing or out of reach, stores another schema than the flags declare, or is empty
            and has a schema's family but no schema.
    """
    if not settings.launch_checks:
        schema = settings.declared.schema()
        targets = tuple(Target(name, schema, Retention.unknown(schema)) for name in settings.tables)
    else:
        targets = tuple(_read_target(name, settings) for name in settings.tables)
    if metric := RangeCheck(target.schema.ranges for target in targets).empty:
        raise ServerError(
            f"no reading of {metric} is valid in all tables: the ranges of [metrics.{metric}] in their schemas have no "
            "number in common; change one with tidetable table apply, or write the tables by jobs of their own"
        )
    return targets


def check_launch(settings: Settings, targets: Sequence[Target]) -> None:
    """Checks that the tables, the families of their schemas, and the subscription or topics exist.

    Needs ``bigtable.tables.get`` and ``pubsub.subscriptions.get``. Topics are checked only if the job has
    ``pubsub.topics.get``, which it needs for nothing else.

    Raises:
        ServerError: the first resource that is missing or out of reach; or at the declared rate, a window or
            a group of sensors would be too large for a job's state; or the job would read its own dead letters,
            results or alerts, or has none to publish.
    """
    for target in targets:
        _check_table(target, settings.declared)
        if target.schema.tiers and (problem := _state_problem(target.schema, settings)):
            raise ServerError(f"table {target.name}: {problem}")
    check_emulator(PUBSUB)
    read_from = set()
    if settings.input_subscription:
        read_from.add(_check_subscription(settings.input_subscription))
    if settings.input_topic:
        read_from |= _check_topic(settings.input_topic)
    if settings.dead_letter_topic and read_from & _check_topic(settings.dead_letter_topic):
        raise ServerError(
            f"--dead-letter-topic={settings.dead_letter_topic} is the topic that "
            f"{settings.input_subscription or 'this job'} reads: each dead letter would be read and refused "
            "again; choose another topic for dead letters"
        )
    if settings.alerts_topic:
        _check_alerts(settings.alerts_topic, settings, targets[0], read_from)
    if settings.results:
        _check_results(settings.results.topic, settings, targets, read_from)


def _check_alerts(topic: str, settings: Settings, target: Target, read_from: set[str]) -> None:
    if read_from & _check_topic(topic):
        raise ServerError(
            f"--alerts-topic={topic} is the topic that {settings.input_subscription or 'this job'} reads: each alert "
            "would be read and refused; choose another topic for alerts"
        )
    if not target.schema.tiers:
        raise ServerError(f"table {target.name} has no tiers, and only readings of a table with tiers are watched")
    if ALERT_FAMILY not in tables.describe(target.name):
        raise ServerError(
            f"table {target.name} has no family {ALERT_FAMILY}; tidetable alerts apply adds it, with a file of rules"
        )
    with RowReader.open(target.name) as reader:
        if not read_rules(reader, target.schema).rules:
            _warn(f"table {target.name} has no rules of alerts yet; store some with tidetable alerts apply")


def _check_results(topic: str, settings: Settings, targets: Sequence[Target], read_from: set[str]) -> None:
    if read_from & _check_topic(topic):
        raise ServerError(
            f"--results-topic={topic} is the topic that {settings.input_subscription or 'this job'} reads: each result "
            "would be read and refused; choose another topic for results"
        )
    if not targets[0].schema.tiers:
        raise ServerError(f"table {targets[0].name} has no tiers, so there are no results for --results-topic")


def record_launch(settings: Settings, targets: Iterable[Target]) -> tuple[Target, ...]:
    """Notes this job in each table for later jobs. Call it last before the job starts.

    Returns:
        The tables with their ids, as far as these could be noted.
    """
    now_us, noted = time.time_ns() // 1000, list[Target]()
    for target in targets:
        table_id = b""
        try:
            if SCHEMA_FAMILY in tables.describe(target.name):
                table_id = noted_id(target.name)
                record_job(target.name, now_us + settings.max_future // _MICROSECOND + 1)
                record_lateness(target.name, settings.allowed_lateness, settings.late_firing, settings.newest_every)
        except ServerError as problem:
            _warn_of_no_note(problem)
        noted.append(target._replace(table_id=table_id))
    return tuple(noted)


def _read_target(name: TableName, settings: Settings) -> Target:
    declared = settings.declared
    present = tables.find(name)
    if present is None:
        raise _no_table(Target(name, declared.schema()), declared)
    if SCHEMA_FAMILY in present and not declared.default and read_schema(name) is None and not has_rows(name):
        # Another program may be about to store a schema, not necessarily the default one.
        raise ServerError(
            f"table {name} is empty, and has the family of a schema but no schema yet: store one with "
            f"{_create_command(Target(name, declared.schema()), declared, present)} (with --schema FILE "
            "unless it is the default one), or set --schema=default"
        )
    schema = schema_of(name, declared)
    retention = retention_of(name, schema, present)
    if SCHEMA_FAMILY in present and read_schema(name) is not None:
        _warn_of_differences(name, schema, present)
        try:
            record_losses(name, schema, retention, present)
        except ServerError as problem:
            _warn_of_no_note(problem)
    return Target(name, schema, retention)


def _warn_of_versions(name: TableName, schema: TableSchema, present: Mapping[str, Policy]) -> None:
    """Warns of each family of aggregates that keeps older versions of cells. Readers take the newest in any case."""
    for family in [tier.family for tier in schema.tiers if tier.family in present]:
        if not keeps_one_version(present[family]):
            _warn(
                f"table {name}: the policy of family {family} is {format_policy(present[family])}, so the table keeps "
                "each row that was written for a window, of which only the newest is read; tidetable table "
                "apply adds maxversions=1"
            )


def _warn_of_differences(name: TableName, schema: TableSchema, present: Mapping[str, Policy]) -> None:
    """Warns of each policy of the table that differs from its schema's, in more than the versions that it keeps."""
    for family in _different(schema, present):
        actual, stored = (format_policy(policies[family]) for policies in (present, schema.policies))
        _warn(
            f"table {name}: the policy of family {family} is {actual}, but {stored} in the table's schema; the job "
            "relies on no row that either of them collects; tidetable table diff shows the difference, tidetable table "
            "apply sets the schema's policy"
        )


def _different(schema: TableSchema, present: Mapping[str, Policy]) -> list[str]:
    return [
        family
        for family in schema.families
        if family in present and not same_policy(schema.completed(family, present[family]), schema.policies[family])
    ]


def _warn_of_no_note(problem: ServerError) -> None:
    """Warns that nothing could be noted. This is no error: a launcher may lack the permission to write."""
    _warn(f"{problem}; so nothing is noted in the table for later jobs")


def _warn(text: str) -> None:
    say(f"warning: {text}", "WARNING")


def _check_table(target: Target, declared: DeclaredSchema) -> None:
    present = tables.find(target.name)
    if present is None:
        raise _no_table(target, declared)
    missing = [family for family in target.schema.families if family not in present]
    if missing:
        raise ServerError(
            f"table {target.name} has no family {', '.join(missing)} (it has {', '.join(present) or 'none'}); "
            f"add the missing families with: {_create_command(target, declared, present)}"
        )
    _warn_of_versions(target.name, target.schema, present)


def _state_problem(schema: TableSchema, settings: Settings) -> str | None:
    """Returns why the state of a table with windows could not be stored or committed; None if no reason is known."""
    of_commit = commit_problem(settings.aggregation_of(schema), schema.rate)
    return state_problem(schema) or of_commit or rollup_problem(schema)


def _no_table(target: Target, declared: DeclaredSchema) -> ServerError:
    return ServerError(f"table {target.name} does not exist; create it with: {_create_command(target, declared, {})}")


def _create_command(target: Target, declared: DeclaredSchema, present: Mapping[str, Policy]) -> str:
    """Returns the command that creates the missing table or families, and keeps the policies of existing families.

    What the flags do not declare, the command reads from the schema that the table stores.
    """
    name, schema = target[:2]
    words = [name.apply_command if present else name.create_command]
    families = {"--raw-family": declared.raw, "--meta-family": declared.meta}
    if declared.window:
        words += [f"--tier {tier.window.text}={tier.family}" for tier in schema.tiers]
    else:
        families["--stats-family"] = declared.stats
    words += [f"{flag} {family}" for flag, family in families.items() if family]
    words += [f"--gc '{family}={format_policy(present[family])}'" for family in _different(schema, present)]
    return " ".join(words)


def _check_subscription(subscription: str) -> str:
    """Checks the subscription, and returns its topic."""
    with explained(f"subscription {subscription}"), pubsub_v1.SubscriberClient() as subscriber:
        found = subscriber.get_subscription(subscription=subscription, retry=None, timeout=_TIMEOUT_S)
    if found.detached or found.topic == "_deleted-topic_":
        raise ServerError(f"subscription {subscription} has lost its topic and will never receive a message")
    return str(found.topic)


def _check_topic(topic: str) -> set[str]:
    """Checks the topic. Returns its name here and on the server, which may have the project's number for its id."""
    with explained(f"topic {topic}"):
        publisher = pubsub_v1.PublisherClient()
        try:
            return {topic, publisher.get_topic(topic=topic, retry=None, timeout=_TIMEOUT_S).name}
        except PermissionDenied:
            return {topic}  # a job may be allowed to publish to a topic, but not to get it
        finally:
            publisher.stop()
