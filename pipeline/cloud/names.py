"""Names of resources, without a client: commands that only parse them start fast."""

import re
from dataclasses import dataclass

_TOPIC = re.compile(r"projects/[^/\s]+/topics/[^/\s]+")
_SUBSCRIPTION = re.compile(r"projects/[^/\s]+/subscriptions/[^/\s]+")


@dataclass(frozen=True)
class TableName:
    """Which table; ``str()`` is its full resource path."""

    project: str
    instance: str
    table: str

    @property
    def parent(self) -> str:
        """The instance's full resource path."""
        return f"projects/{self.project}/instances/{self.instance}"

    def __str__(self) -> str:
        return f"{self.parent}/tables/{self.table}"


def topic_path(text: str) -> str:
    """The text itself, when it is a topic's full path.

    Raises:
        ValueError: it is not; in one line, with the form that it should have.
    """
    if not _TOPIC.fullmatch(text):
        raise ValueError(f"topic {text!r} is not a full path; write projects/PROJECT/topics/TOPIC")
    return text


def subscription_path(text: str) -> str:
    """The text itself, when it is a subscription's full path.

    Raises:
        ValueError: it is not; in one line, with the form that it should have.
    """
    if not _SUBSCRIPTION.fullmatch(text):
        raise ValueError(f"subscription {text!r} is not a full path; write projects/PROJECT/subscriptions/SUBSCRIPTION")
    return text
