"""Messages that wait on a subscription, for commands that show what mappings make of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import click

from pipeline.cli.peeking import open_backlog
from pipeline.core.events.dead_letter import REASON, original_of
from pipeline.core.events.message import Message
from pipeline.core.notation.durations import format_duration


class Pulled(NamedTuple):
    """Messages with their sources, and whether Ctrl-C was pressed."""

    messages: list[tuple[str, Message]]
    stopped: Callable[[], bool]


@contextmanager
def pulled_messages(subscription: str, limit: int, wait: timedelta) -> Iterator[Pulled]:
    """Pulls messages; those of a dead-letter topic as they were when they were refused. Gives all back at the end."""
    with open_backlog(subscription) as (backlog, stopped):
        found: list[tuple[str, Message]] = []
        for page in backlog.pages(limit, first=limit, wait_seconds=wait.total_seconds(), stopped=stopped):
            for message in page:
                original = original_of(message) if REASON in message.attributes else message
                found.append((f"message {original.message_id}", original))
        if not found and not stopped():
            waited = f"within {format_duration(wait)}" if wait else "at once"
            click.echo(f"no message from {subscription} {waited}", err=True)
        yield Pulled(found, stopped)
