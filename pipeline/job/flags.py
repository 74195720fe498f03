"""The job's own flags, each declared once, also as an option of ``tidetable run`` and a parameter of the template.

``templates/generate_metadata.py`` writes the template's parameters. Regular expressions are anchored by those who use
them, and mean the same in Python, POSIX and RE2: Google checks parameters by them.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions

from pipeline.cloud.connection import names
from pipeline.core.events.message import EVENT_TYPE
from pipeline.core.notation.durations import parse_duration
from pipeline.core.windows import Window


class BadFlag(Exception):
    """An invalid flag. ``str()`` is one line that names the flag and what it accepts."""


class Kind(NamedTuple):
    """A kind of values.

    Attributes:
        metavar: the name of a value in the help.
        regex: the expression that values match.
        parse: the function that turns a matching text into a value of the settings. It raises ValueError.
        expected: a phrase for valid values; empty if the message of ``parse`` is better.
        parameter: the type of the template's parameter.
    """

    metavar: str
    regex: str
    parse: Callable[[str], Any] = str
    expected: str = ""
    parameter: str = "TEXT"

    def value(self, flag: str, text: str) -> Any:
        """Returns the value in the settings. Raises BadFlag."""
        self.check(flag, text, self.regex)
        try:
            return self.parse(text)
        except ValueError as error:
            raise BadFlag(f"{flag}: {error}") from error

    def check(self, flag: str, text: str, regex: str) -> None:
        """Raises BadFlag for text that does not match the expression, unless ``parse`` has the better message."""
        if self.expected and not re.fullmatch(regex, text):
            raise BadFlag(f"{flag} is {text!r}; it has to be {self.expected}")


def _path(kind: str, parse: Callable[[str], str]) -> Kind:
    regex = rf"projects/{names.PROJECT.pattern}/{kind}s/{names.PUBSUB_NAME.pattern}"
    return Kind("PATH", regex, parse, parameter=f"PUBSUB_{kind.upper()}")


_SUBSCRIPTION = _path("subscription", names.subscription_path)
_TOPIC = _path("topic", names.topic_path)
_ATTRIBUTE = Kind("NAME", "[!-~][!-~]{0,255}", expected="the name of an attribute, like event_time")  # POSIX: ≤ 255
_FILES = Kind("FILE", "[^,]+", expected="the path of a file, local or gs://BUCKET/FILE, or several separated by commas")
_FUNCTION = Kind(
    "MODULE:FUNCTION",
    "[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*",
    expected="MODULE:FUNCTION, like acme.messages:decode",
)
_TYPE = Kind("NAME", "[A-Za-z_][A-Za-z0-9_.]*", expected="the name of a type, like acme.v1.Report")
PROJECT = Kind("ID", names.PROJECT.pattern, names.project_id)
_INSTANCE = Kind("ID", names.INSTANCE.pattern, names.instance_id)
_TABLES = Kind("ID", names.TABLE.pattern, names.table_id)
_APP_PROFILE = Kind("ID", names.APP_PROFILE.pattern, names.app_profile_id)
_FAMILY = Kind("NAME", names.FAMILY.pattern, names.family_name)
_DURATION = Kind("DURATION", "(0|[0-9]{1,9}[smhd])", parse_duration)
_WINDOW = Kind("DURATION", "[0-9]{1,9}[smhd]", Window.parse)


class JobFlag(NamedTuple):
    """A flag of the job.

    Attributes:
        name: the name, with underscores as in Beam's flags.
        label: the name in the template's form.
        help: a sentence or two about the meaning.
        kind: the kind of its values; a table of choices, each with its meaning.
        default: the text of the default value; None if the flag has none.
        repeatable: whether there may be several values: repeated, or separated by commas.
        required: whether every job needs it.
        only_with: another flag, and the value of it with which the template's form shows this one.
    """

    name: str
    label: str
    help: str
    kind: Kind | Mapping[str, str]
    default: str | None = None
    repeatable: bool = False
    required: bool = False
    only_with: tuple[str, str] | None = None

    @property
    def option(self) -> str:
        """The flag as people write it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def metavar(self) -> str:
        """The name of a value in the help."""
        return self.kind.metavar if isinstance(self.kind, Kind) else "|".join(self.kind)

    @property
    def regex(self) -> str:
        """The expression that the text of all its values matches."""
        regex = self.kind.regex if isinstance(self.kind, Kind) else f"({'|'.join(self.kind)})"
        return f"{regex}(,{regex})*" if self.repeatable else regex

    def value(self, texts: Any) -> Any:
        """Returns the value in the settings: of a repeatable flag a tuple. Raises BadFlag."""
        if self.repeatable:
            for text in texts or ():
                if isinstance(self.kind, Kind):
                    self.kind.check(self.option, text, self.regex)
            return tuple(self._one(each) for text in texts or () for each in text.split(","))
        return None if texts is None else self._one(texts)

    def _one(self, text: str) -> Any:
        if isinstance(self.kind, Kind):
            return self.kind.value(self.option, text)
        if text not in self.kind:
            raise BadFlag(f"{self.option} is {text!r}; it has to be {' or '.join(self.kind)}")
        return text


_GROUPS: dict[str, Sequence[JobFlag]] = {
    "Input": (
        JobFlag(
            "input_subscription",
            "Input subscription",
            "The subscription to read from, projects/P/subscriptions/S. Set this or the input topic.",
            _SUBSCRIPTION,
        ),
        JobFlag(
            "input_topic",
            "Input topic",
            "The topic to read from, projects/P/topics/T, by a subscription that the job creates.",
            _TOPIC,
        ),
        JobFlag(
            "timestamp_attribute",
            "Timestamp attribute",
            "Attribute whose time drives the watermark, such as event_time; the publish time without it.",
            _ATTRIBUTE,
        ),
        JobFlag(
            "id_attribute",
            "Id attribute",
            "Attribute by which Dataflow removes redelivered messages, such as event_id; Pub/Sub's message id without "
            "it.",
            _ATTRIBUTE,
        ),
        JobFlag(
            "max_future",
            "Maximum future",
            "How far ahead of the clock an event time may be. Later events become dead letters.",
            _DURATION,
            default="1h",
        ),
    ),
    "Message types": (
        JobFlag(
            "message_mapping",
            "Message mappings",
            "TOML file that maps messages to events, local or gs://; repeatable, or separated by commas.",
            _FILES,
            repeatable=True,
        ),
        JobFlag(
            "message_descriptors",
            "Message descriptors",
            "FileDescriptorSet of mapped types, local or gs://, or projects/P/schemas/S; repeatable too. JSON needs "
            "none.",
            _FILES,
            repeatable=True,
        ),
        JobFlag(
            "message_decoder",
            "Message decoder",
            "Function that makes events of messages that no mapping takes; the image must contain it.",
            _FUNCTION,
        ),
        JobFlag(
            "default_message_type",
            "Default message type",
            f"Type of messages without the attribute message_type; {EVENT_TYPE} by default, but none with mappings or "
            "a decoder.",
            _TYPE,
        ),
        JobFlag(
            "unknown_fields",
            "Unknown fields",
            "Count fields that SensorEvent does not have, or refuse their events, which become dead letters.",
            {"count": "Count them", "refuse": "Refuse the event"},
            default="count",
        ),
    ),
    "Dead letters": (
        JobFlag(
            "dead_letters",
            "Dead letters",
            "Publish dead letters, or drop them and only count them.",
            {"publish": "Publish them to the dead-letter topic", "drop": "Drop them and count them"},
            default="publish",
        ),
        JobFlag(
            "dead_letter_topic",
            "Dead-letter topic",
            "The topic of dead letters, projects/P/topics/T. It is needed unless they are dropped.",
            _TOPIC,
            only_with=("dead_letters", "publish"),
        ),
    ),
    "Table": (
        JobFlag(
            "bigtable_project", "Bigtable project", "Project of the Bigtable instance; --project by default.", PROJECT
        ),
        JobFlag("bigtable_instance", "Bigtable instance", "Bigtable instance.", _INSTANCE, required=True),
        JobFlag(
            "bigtable_table",
            "Bigtable tables",
            "Bigtable table; repeatable, or several separated by commas: each event goes to all of them.",
            _TABLES,
            repeatable=True,
            required=True,
        ),
        JobFlag(
            "schema",
            "Schema",
            "The word default: a table that stores no schema has the default one.",
            {"default": "The default schema"},
        ),
        *(
            JobFlag(
                f"{family}_family",
                f"Family of {contents}",
                f"Family of {contents}; {family} in the default schema.",
                _FAMILY,
            )
            for family, contents in (("raw", "readings"), ("stats", "aggregates"), ("meta", "metadata"))
        ),
    ),
    "Windows": (
        JobFlag(
            "window",
            "Window",
            "Length of the shortest windows; must divide a day; 1h in the default schema.",
            _WINDOW,
        ),
        JobFlag("early_firing", "Early firing", "Interval of early panes; 0 for none.", _DURATION, default="5m"),
        JobFlag(
            "late_firing",
            "Late firing",
            "Interval of late panes, and of recomputing windows for later events; 0 for immediately.",
            _DURATION,
            default="60s",
        ),
        JobFlag(
            "allowed_lateness",
            "Allowed lateness",
            "How long a window stays in state for late events; for later ones it is recomputed from raw rows.",
            _DURATION,
            default="10m",
        ),
    ),
    "Results": (
        JobFlag(
            "results_topic",
            "Results topic",
            "The topic of the results of finished windows, projects/P/topics/T.",
            _TOPIC,
        ),
        JobFlag(
            "results",
            "Results",
            "Final results, when a window is over and at each correction, or all, with early panes.",
            {"final": "When a window is over, and each correction", "all": "Early panes too"},
            default="final",
        ),
        JobFlag(
            "results_encoding",
            "Results encoding",
            "Encoding of results: tidetable.v1.WindowResult, or its JSON form.",
            {"protobuf": "tidetable.v1.WindowResult", "json": "Its JSON form"},
            default="protobuf",
        ),
    ),
    "Alerts": (
        JobFlag(
            "alerts_topic",
            "Alerts topic",
            "The topic of alerts, projects/P/topics/T. The table stores their rules.",
            _TOPIC,
        ),
    ),
    "Writing and starting": (
        JobFlag(
            "bigtable_writer",
            "Bigtable writer",
            "Beam's own connector, or bulk, our own, which sends more rows in a request.",
            {"connector": "Beam's connector", "bulk": "Bulk writer"},
            default="connector",
        ),
        JobFlag(
            "newest_every",
            "Newest readings",
            "Least time between a sensor's rows of newest readings, beside panes; 0 to write them with raw rows.",
            _DURATION,
            default="0",
        ),
        JobFlag("app_profile", "App profile", "App profile of all reads and writes of the tables.", _APP_PROFILE),
        JobFlag(
            "launch_checks",
            "Launch checks",
            "Off starts without asking the servers, and takes the schema of every table from the options.",
            {"on": "Check", "off": "Start without checks"},
            default="on",
        ),
    ),
}

FLAGS: Mapping[str, JobFlag] = {flag.name: flag for flags in _GROUPS.values() for flag in flags}
"""The flags by name."""


class TidetableOptions(PipelineOptions):
    """The job's own flags, which are added to Beam's."""

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        for title, flags in _GROUPS.items():
            group = parser.add_argument_group(title)
            for flag in flags:
                action = "append" if flag.repeatable else "store"
                group.add_argument(
                    f"--{flag.name}", action=action, default=flag.default, metavar=flag.metavar, help=flag.help
                )


def values_of(options: PipelineOptions) -> SimpleNamespace:
    """Returns the values of all flags, by name. Raises BadFlag for the first one that is invalid."""
    given = options.view_as(TidetableOptions)
    return SimpleNamespace(**{name: flag.value(getattr(given, name)) for name, flag in FLAGS.items()})


def parameters() -> list[dict[str, Any]]:
    """Returns the parameters of the Flex Template, as ``gcloud dataflow flex-template build`` reads them."""
    return [_parameter(title, flag) for title, flags in _GROUPS.items() for flag in flags]


def _parameter(group: str, flag: JobFlag) -> dict[str, Any]:
    parameter: dict[str, Any] = {
        "name": flag.name,
        "label": flag.label,
        "helpText": flag.help.replace("--project", "the job's project"),
        "isOptional": not flag.required,
        "regexes": [f"^{flag.regex}$"],
    }
    if isinstance(flag.kind, Kind):
        parameter["paramType"] = flag.kind.parameter
    else:
        parameter["paramType"] = "ENUM"
        parameter["enumOptions"] = [{"value": value, "label": label} for value, label in flag.kind.items()]
    if flag.default is not None:
        parameter["defaultValue"] = flag.default
    if flag.only_with:
        other, value = flag.only_with
        return parameter | {"parentName": other, "parentTriggerValues": [value]}
    return parameter | {"groupName": group}
