"""What is asked of the servers before a message is read: is everything there that the job is to use?"""

from collections.abc import Mapping
from dataclasses import astuple

from google.api_core.exceptions import PermissionDenied
from google.cloud import pubsub_v1

from pipeline.cloud import tables
from pipeline.cloud.errors import ServerProblem, explained
from pipeline.core.rows import Families
from pipeline.core.schema.policies import Policy, format_policy, same_policy
from pipeline.job.settings import Settings

_TIMEOUT_S = 10.0


def check_launch(settings: Settings) -> None:
    """Asks for the table, its three families, and the subscription or topics.

    Needs ``bigtable.tables.get`` and ``pubsub.subscriptions.get``. Topics are checked where the job may ask for them
    (``pubsub.topics.get``), which it needs for nothing else.

    Raises:
        ServerProblem: the first thing that is missing or out of reach.
    """
    _check_table(settings)
    if settings.input_subscription:
        _check_subscription(settings.input_subscription)
    for topic in (settings.input_topic, settings.dead_letter_topic):
        if topic:
            _check_topic(topic)


def _check_table(settings: Settings) -> None:
    name = settings.table
    present = tables.find(name)
    families = settings.families
    if present is None:
        raise ServerProblem(f"table {name} does not exist; create it with: {_create_command(settings, {})}")
    missing = [family for family in (families.raw, families.stats, families.meta) if family not in present]
    if missing:
        raise ServerProblem(
            f"table {name} has no family {', '.join(missing)} (it has {', '.join(present) or 'none'}); "
            f"add what is missing with: {_create_command(settings, present)} --apply"
        )


def _create_command(settings: Settings, present: Mapping[str, Policy]) -> str:
    """The command that makes the table as this job wants it, and leaves the policies of what is there alone."""
    name, families = settings.table, settings.families
    words = ["tidetable table create", f"--project {name.project} --instance {name.instance} --table {name.table}"]
    for flag, family, default in zip(("raw", "stats", "meta"), astuple(families), astuple(Families()), strict=True):
        if family != default:
            words.append(f"--{flag}-family {family}")
    for family, default_policy in tables.default_policies(families).items():
        if family in present and not same_policy(present[family], default_policy):
            words.append(f"--gc '{family}={format_policy(present[family])}'")
    return " ".join(words)


def _check_subscription(subscription: str) -> None:
    with explained(f"subscription {subscription}"), pubsub_v1.SubscriberClient() as subscriber:
        found = subscriber.get_subscription(subscription=subscription, retry=None, timeout=_TIMEOUT_S)
    if found.detached or found.topic == "_deleted-topic_":
        raise ServerProblem(f"subscription {subscription} has lost its topic and will never bring a message")


def _check_topic(topic: str) -> None:
    with explained(f"topic {topic}"):
        publisher = pubsub_v1.PublisherClient()
        try:
            publisher.get_topic(topic=topic, retry=None, timeout=_TIMEOUT_S)
        except PermissionDenied:
            pass  # a job that may publish to a topic need not be allowed to look at it
        finally:
            publisher.stop()
