"""The flags about results as messages, and about alerts."""

from typing import NamedTuple

from pipeline.cloud.connection.names import topic_path
from pipeline.core.results.window_results import ENCODINGS, Encoding
from pipeline.job.flag_values import BadFlag, choice, optional_name
from pipeline.job.options import TidetableOptions


class ResultFlags(NamedTuple):
    """The flags about results as messages.

    Attributes:
        topic: the topic that results are published to.
        early: whether early panes are published too.
        encoding: the encoding of the messages.
    """

    topic: str
    early: bool
    encoding: Encoding


def result_flags(flags: TidetableOptions) -> ResultFlags | None:
    """Returns the flags about results; None for a job that publishes none.

    Raises:
        BadFlag: a flag is invalid, lacks the topic, or names a topic that has another use.
    """
    topic = optional_name("--results_topic", flags.results_topic, topic_path)
    which = choice("--results", flags.results, ("final", "all"))
    choice("--results_encoding", flags.results_encoding, ENCODINGS)
    encoding: Encoding = "json" if flags.results_encoding == "json" else "protobuf"
    if topic is None:
        for flag, value, default in (("--results", which, "final"), ("--results_encoding", encoding, "protobuf")):
            if value != default:
                raise BadFlag(f"{flag}={value} needs --results_topic, the topic that results are published to")
        return None
    if topic == flags.input_topic:
        raise BadFlag("--results_topic is --input_topic: each result would be read and refused")
    if topic == flags.dead_letter_topic and flags.dead_letters != "drop":
        raise BadFlag("--results_topic is --dead_letter_topic: results would be among the dead letters")
    return ResultFlags(topic, which == "all", encoding)


def alerts_topic(flags: TidetableOptions) -> str | None:
    """Returns the topic of alerts; None for a job that watches nothing.

    Raises:
        BadFlag: the flag is invalid, or names a topic that has another use.
    """
    topic = optional_name("--alerts_topic", flags.alerts_topic, topic_path)
    if topic is None:
        return None
    if topic == flags.input_topic:
        raise BadFlag("--alerts_topic is --input_topic: each alert would be read and refused")
    for flag, other in (("--dead_letter_topic", flags.dead_letter_topic), ("--results_topic", flags.results_topic)):
        if topic == other and (flag, flags.dead_letters) != ("--dead_letter_topic", "drop"):
            raise BadFlag(f"--alerts_topic is {flag}: alerts would be among other messages")
    return topic
