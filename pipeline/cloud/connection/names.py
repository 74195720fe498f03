"""Names of resources. This module imports no client, so that commands that only parse names start fast."""

import re
from dataclasses import dataclass

_TOPIC = re.compile(r"projects/[^/\s]+/topics/[^/\s]+")
_SUBSCRIPTION = re.compile(r"projects/[^/\s]+/subscriptions/[^/\s]+")
APP_PROFILE = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
_SCHEMA = re.compile(r"projects/[^/\s@]+/schemas/[^/\s@]+")


@dataclass(frozen=True)
class TableName:
    """Names a table, and the route to it. ``str()`` is the table's full resource path.

    Attributes:
        project: the id of the instance's project.
        instance: the instance's id.
        table: the table's id.
        app_profile: the app profile by which Bigtable routes reads and writes; empty for the instance's default.
    """

    project: str
    instance: str
    table: str
    app_profile: str = ""

    @property
    def target(self) -> dict[str, str]:
        """The fields of a request for rows that name the table and the app profile."""
        return {"table_name": str(self), "app_profile_id": self.app_profile}

    @property
    def parent(self) -> str:
        """The instance's full resource path."""
        return f"projects/{self.project}/instances/{self.instance}"

    @property
    def create_command(self) -> str:
        """The command that creates the table, or lists what it lacks."""
        return f"tidetable table create --project {self.project} --instance {self.instance} --table {self.table}"

    @property
    def is_missing(self) -> str:
        """The message that the table does not exist, with the command that creates it."""
        return f"table {self} does not exist; create it with: {self.create_command}"

    def __str__(self) -> str:
        return f"{self.parent}/tables/{self.table}"


def topic_path(text: str) -> str:
    """Returns the full path of a topic as it is. Raises ValueError, which shows the right form, for other text."""
    if not _TOPIC.fullmatch(text):
        raise ValueError(f"topic {text!r} is not a full path; write projects/PROJECT/topics/TOPIC")
    return text


def subscription_path(text: str) -> str:
    """Returns the full path of a subscription as it is. Raises ValueError, which shows the right form, for others."""
    if not _SUBSCRIPTION.fullmatch(text):
        raise ValueError(f"subscription {text!r} is not a full path; write projects/PROJECT/subscriptions/SUBSCRIPTION")
    return text


def is_schema_path(text: str) -> bool:
    """Returns whether the text is the full path of a schema that Pub/Sub holds, ``projects/PROJECT/schemas/SCHEMA``."""
    return _SCHEMA.fullmatch(text) is not None
