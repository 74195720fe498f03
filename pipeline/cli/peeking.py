"""Reads the messages that wait on a subscription and returns them to it, for commands that show messages."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pipeline.cli.console import stop_on_sigint

if TYPE_CHECKING:
    from pipeline.cloud.pubsub.backlog import Backlog


@contextmanager
def open_backlog(subscription: str) -> Iterator[tuple["Backlog", Callable[[], bool]]]:
    """Opens a subscription's backlog. Yields it with a function that returns whether Ctrl-C was pressed.

    Leaving the block returns the messages that were not acknowledged. Exits with 130 at a second Ctrl-C.
    """
    from pipeline.cloud.pubsub.backlog import Backlog

    try:
        with stop_on_sigint() as stopped, Backlog(subscription) as backlog:
            if backlog.max_attempts:
                click.echo(
                    f"{subscription} has a dead-letter policy: this command counts as one of the "
                    f"{backlog.max_attempts} deliveries after which Pub/Sub removes a message",
                    err=True,
                )
            yield backlog, stopped
    except KeyboardInterrupt:
        click.echo("Interrupted twice: messages already read come back when their one-minute lease expires", err=True)
        os._exit(130)  # a regular exit would wait for the client's requests
