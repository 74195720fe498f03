"""The flags about results as messages, and about alerts."""

from types import SimpleNamespace
from typing import NamedTuple

from pipeline.core.results.window_results import Encoding
from pipeline.job.flags import FLAGS, BadFlag


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


def result_flags(flags: SimpleNamespace) -> ResultFlags | None:
    """Returns the flags about results; None for a job that publishes none.

    Raises:
        BadFlag: a flag lacks the topic, or names a topic that has another use.
    """
    topic = flags.results_topic
    if topic is None:
        for name in ("results", "results_encoding"):
            if (value := getattr(flags, name)) != FLAGS[name].default:
                option = FLAGS[name].option
                raise BadFlag(f"{option}={value} needs --results-topic, the topic that results are published to")
        return None
    if topic == flags.input_topic:
        raise BadFlag("--results-topic is --input-topic: each result would be read and refused")
    if topic == flags.dead_letter_topic and flags.dead_letters != "drop":
        raise BadFlag("--results-topic is --dead-letter-topic: results would be among the dead letters")
    return ResultFlags(topic, flags.results == "all", flags.results_encoding)


def alerts_topic(flags: SimpleNamespace) -> str | None:
    """Returns the topic of alerts; None for a job that watches nothing.

    Raises:
        BadFlag: the flag names a topic that has another use.
    """
    topic: str | None = flags.alerts_topic
    if topic is None:
        return None
    if topic == flags.input_topic:
        raise BadFlag("--alerts-topic is --input-topic: each alert would be read and refused")
    for option, other in (("--dead-letter-topic", flags.dead_letter_topic), ("--results-topic", flags.results_topic)):
        if topic == other and (option, flags.dead_letters) != ("--dead-letter-topic", "drop"):
            raise BadFlag(f"--alerts-topic is {option}: alerts would be among other messages")
    return topic
