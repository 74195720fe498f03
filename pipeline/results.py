"""``tidetable results``: what a job publishes about finished windows."""

import sys

import click

from pipeline.cli.console import print_json_line, stop_on_sigint
from pipeline.cli.hints import ExampleGroup
from pipeline.cli.options import Parsed, limit_option
from pipeline.cloud.connection.names import subscription_path
from pipeline.cloud.connection.problems import ServerError
from pipeline.core.results.window_results import result_json


@click.group(cls=ExampleGroup)
def results() -> None:
    """Follow the results of finished windows, which a job publishes with --results-topic."""


@results.command()
@click.option(
    "--results-subscription",
    "subscription",
    required=True,
    type=Parsed("subscription", subscription_path),
    help="A subscription of the results' topic, projects/PROJECT/subscriptions/SUBSCRIPTION. Each result that is "
    "printed is removed from it, so let nobody else read it.",
)
@limit_option()
@click.pass_context
def follow(ctx: click.Context, subscription: str, limit: int | None) -> None:
    """Print results as they come, a line of JSON each, until Ctrl-C.

    The line has the fields of tidetable.v1.WindowResult, with metrics and statistics by name. Of each window, the
    result with the greatest event_id is the newest; one may come twice.

    \b
    Exit codes:
      0    as many results as --limit were printed
      1    the subscription does not exist, the server is unavailable, or a message is no result
      2    wrong usage
      130  Ctrl-C
    """  # noqa: D301 (\b tells click to keep the line breaks of a paragraph)
    from pipeline.cloud.pubsub.following import followed

    with stop_on_sigint() as stopped:
        for messages in followed(subscription, limit, stopped):
            for message in messages:
                try:
                    found = result_json(message.data)
                except ValueError as error:
                    raise ServerError(f"subscription {subscription}: {error}; it stays there") from error
                print_json_line(found)
            sys.stdout.flush()
        ctx.exit(130 if stopped() else 0)
