r"""Names of resources, and which of them Google Cloud allows: one rule for all commands, flags and settings.

The rules are those of https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names and the reference of Bigtable's
admin API. templates/metadata.json repeats them for Google, as POSIX or RE2 expressions: no lookaround, no \s, no (?:.
This module imports no client, so that commands that only parse names start fast.
"""

import re
from dataclasses import dataclass
from functools import partial

PROJECT = re.compile(r"[a-z][-a-z0-9:.]{4,61}[a-z0-9]")  # old ones begin with a domain, like example.com:my-project
INSTANCE = re.compile(r"[a-z][-a-z0-9]{0,32}")
TABLE = re.compile(r"[_A-Za-z0-9][-_.A-Za-z0-9]{0,49}")
FAMILY = re.compile(r"[-_.A-Za-z0-9]{1,64}")
APP_PROFILE = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}")
# Names that begin with "goog" are reserved. Without lookaround a rule for them would be long, and the launch checks
# find that no resource has such a name.
PUBSUB_NAME = re.compile(r"[A-Za-z][-A-Za-z0-9._~%+]{2,254}")
_RULES = {
    PROJECT: "a project id has 6 to 30 characters: lowercase letters, digits and hyphens, first a letter, "
    "last no hyphen",
    INSTANCE: "an instance id has at most 33 characters: lowercase letters, digits and hyphens, first a letter",
    TABLE: "a table id has at most 50 characters: letters, digits, hyphens, underscores and dots, first neither a "
    "hyphen nor a dot",
    FAMILY: "a column family has at most 64 characters: letters, digits, hyphens, underscores and dots",
    APP_PROFILE: "the id of an app profile, like batch-reads, has at most 50 characters: letters, digits, hyphens, "
    "underscores and dots, first neither a hyphen nor a dot",
    PUBSUB_NAME: "names of topics and subscriptions have 3 to 255 characters: letters, digits and -._~%+, first a "
    "letter",
}
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
        return self._command("create")

    @property
    def apply_command(self) -> str:
        """The command that changes the table and stores its schema."""
        return self._command("apply")

    @property
    def is_missing(self) -> str:
        """The message that the table does not exist, with the command that creates it."""
        return f"table {self} does not exist; create it with: {self.create_command}"

    def _command(self, verb: str) -> str:
        return f"tidetable table {verb} --project {self.project} --instance {self.instance} --table {self.table}"

    def __str__(self) -> str:
        return f"{self.parent}/tables/{self.table}"


def _named(pattern: re.Pattern[str], text: str) -> str:
    """Returns a name as it is. Raises ValueError, which tells the rule, for a name that Google Cloud does not allow."""
    if not pattern.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid name on Google Cloud: {_RULES[pattern]}")
    return text


project_id = partial(_named, PROJECT)
instance_id = partial(_named, INSTANCE)
table_id = partial(_named, TABLE)
family_name = partial(_named, FAMILY)
app_profile_id = partial(_named, APP_PROFILE)


def topic_path(text: str) -> str:
    """Returns the full path of a topic as it is. Raises ValueError, which shows the right form, for other text."""
    return _path("topic", text)


def subscription_path(text: str) -> str:
    """Returns the full path of a subscription as it is. Raises ValueError, which shows the right form, for others."""
    return _path("subscription", text)


def _path(kind: str, text: str) -> str:
    parts = re.fullmatch(rf"projects/([^/\s]+)/{kind}s/([^/\s]+)", text)
    if not parts:
        raise ValueError(f"{kind} {text!r} is not a full path; write projects/PROJECT/{kind}s/{kind.upper()}")
    for pattern, name in zip((PROJECT, PUBSUB_NAME), parts.groups(), strict=True):
        _named(pattern, name)
    return text


def is_schema_path(text: str) -> bool:
    """Returns whether the text is the full path of a schema that Pub/Sub holds, ``projects/PROJECT/schemas/SCHEMA``."""
    return _SCHEMA.fullmatch(text) is not None
