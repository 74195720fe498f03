"""What is asked of the servers before a message is read: is everything there that the job is to use?"""

import sys
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from google.api_core.exceptions import PermissionDenied
from google.cloud import pubsub_v1

from pipeline.cloud import tables
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.cloud.names import TableName
from pipeline.cloud.retention_notes import record_job, record_losses, retention_of
from pipeline.cloud.schema_store import has_rows, read_schema, schema_of
from pipeline.core.schema.declared import DeclaredSchema
from pipeline.core.schema.policies import Policy, format_policy, same_policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.job.settings import Settings, Target

_TIMEOUT_S = 10.0
_MICROSECOND = timedelta(microseconds=1)


def read_targets(settings: Settings) -> tuple[Target, ...]:
    """The tables with the schemas that they have of themselves; with ``--launch_checks=off``, as flags say they are.

    Needs ``bigtable.tables.get`` and ``bigtable.tables.readRows``. Warns on standard error where a table's policies are
    not those of its schema. A table that nobody asked may have any policies, so that its raw rows are not relied on.

    Raises:
        ServerProblem: a table is missing or out of reach, or has another schema than flags say, or does not say which.
    """
    if not settings.launch_checks:
        schema = settings.declared.schema()
        return tuple(Target(name, schema, Retention.unknown(schema)) for name in settings.tables)
    return tuple(_read_target(name, settings) for name in settings.tables)


def check_launch(settings: Settings, targets: Iterable[Target]) -> None:
    """Asks for the tables, the families of their schemas, and the subscription or topics.

    Needs ``bigtable.tables.get`` and ``pubsub.subscriptions.get``. Topics are checked where the job may ask for them
    (``pubsub.topics.get``), which it needs for nothing else.

    Raises:
        ServerProblem: the first thing that is missing or out of reach; or the job would read its own dead letters.
    """
    for target in targets:
        _check_table(target, settings.declared)
    read_from = set()
    if settings.input_subscription:
        read_from.add(_check_subscription(settings.input_subscription))
    if settings.input_topic:
        read_from |= _check_topic(settings.input_topic)
    if settings.dead_letter_topic and read_from & _check_topic(settings.dead_letter_topic):
        raise ServerProblem(
            f"--dead_letter_topic={settings.dead_letter_topic} is the topic that "
            f"{settings.input_subscription or 'this job'} reads: each dead letter would come back and be refused "
            "again; take another topic for dead letters"
        )


def record_launch(settings: Settings, targets: Iterable[Target]) -> None:
    """Has the tables note what later jobs should know of this one. To be called when nothing keeps it from starting."""
    now_us = time.time_ns() // 1000
    for target in targets:
        try:
            if SCHEMA_FAMILY in tables.describe(target.name):
                record_job(
                    target.name,
                    deduplicate=settings.deduplicate,
                    earliest_us=now_us - settings.allowed_lateness // _MICROSECOND,
                    latest_us=now_us + settings.max_future // _MICROSECOND + 1,
                )
        except ServerProblem as problem:
            _warn_of_no_note(problem)


def _read_target(name: TableName, settings: Settings) -> Target:
    declared = settings.declared
    present = tables.find(name)
    if present is None:
        raise _no_table(Target(name, declared.schema()), declared)
    if SCHEMA_FAMILY in present and not declared.default and read_schema(name) is None and not has_rows(name):
        # Somebody is about to store one, and it need not be the default one.
        raise ServerProblem(
            f"table {name} is empty, and has the family of a schema and no schema yet: store one with "
            f"{_create_command(Target(name, declared.schema()), declared, present)} --apply (with --schema FILE for "
            "another than the default one), or pass --schema=default"
        )
    schema = schema_of(name, declared)
    retention = retention_of(name, schema, present)
    if SCHEMA_FAMILY in present and read_schema(name) is not None:
        _warn_of_differences(name, schema, present)
        try:
            record_losses(name, schema, retention, present)
        except ServerProblem as problem:
            _warn_of_no_note(problem)
    return Target(name, schema, retention)


def _warn_of_differences(name: TableName, schema: TableSchema, present: Mapping[str, Policy]) -> None:
    """Warns of the table's policies that are not those of its schema."""
    different = [
        family
        for family in schema.families
        if family in present and not same_policy(present[family], schema.policies[family])
    ]
    for family in different:
        actual, stored = (format_policy(policies[family]) for policies in (present, schema.policies))
        _warn(
            f"table {name}: the policy of family {family} is {actual}, and the table's schema says {stored}; the job "
            "relies on no row that either of them collects; tidetable table diff shows the difference, tidetable table "
            "create --apply sets the schema's"
        )


def _warn_of_no_note(problem: ServerProblem) -> None:
    """A launcher need not be allowed to write."""
    _warn(f"{problem}; so the table can't note what later jobs should know of it")


def _warn(text: str) -> None:
    print(f"tidetable: warning: {text}", file=sys.stderr)


def _check_table(target: Target, declared: DeclaredSchema) -> None:
    present = tables.find(target.name)
    if present is None:
        raise _no_table(target, declared)
    missing = [family for family in target.schema.families if family not in present]
    if missing:
        raise ServerProblem(
            f"table {target.name} has no family {', '.join(missing)} (it has {', '.join(present) or 'none'}); "
            f"add what is missing with: {_create_command(target, declared, present)} --apply"
        )


def _no_table(target: Target, declared: DeclaredSchema) -> ServerProblem:
    return ServerProblem(f"table {target.name} does not exist; create it with: {_create_command(target, declared, {})}")


def _create_command(target: Target, declared: DeclaredSchema, present: Mapping[str, Policy]) -> str:
    """The command that makes the table as this job wants it, and leaves the policies of what is there alone.

    What flags do not say, the table says of itself, and the command knows.
    """
    name, schema, _ = target
    words = ["tidetable table create", f"--project {name.project} --instance {name.instance} --table {name.table}"]
    families = {"--raw-family": declared.raw, "--meta-family": declared.meta}
    if declared.window:
        words += [f"--tier {tier.window.text}={tier.family}" for tier in schema.tiers]
    else:
        families["--stats-family"] = declared.stats
    words += [f"{flag} {family}" for flag, family in families.items() if family]
    for family in schema.families:
        if family in present and not same_policy(present[family], schema.policies[family]):
            words.append(f"--gc '{family}={format_policy(present[family])}'")
    return " ".join(words)


def _check_subscription(subscription: str) -> str:
    """The topic that it is of."""
    with explained(f"subscription {subscription}"), pubsub_v1.SubscriberClient() as subscriber:
        found = subscriber.get_subscription(subscription=subscription, retry=None, timeout=_TIMEOUT_S)
    if found.detached or found.topic == "_deleted-topic_":
        raise ServerProblem(f"subscription {subscription} has lost its topic and will never bring a message")
    return str(found.topic)


def _check_topic(topic: str) -> set[str]:
    """What the topic is called: as it is here, and as the server has it, by the project's id or its number."""
    with explained(f"topic {topic}"):
        publisher = pubsub_v1.PublisherClient()
        try:
            return {topic, publisher.get_topic(topic=topic, retry=None, timeout=_TIMEOUT_S).name}
        except PermissionDenied:
            return {topic}  # a job that may publish to a topic need not be allowed to look at it
        finally:
            publisher.stop()
