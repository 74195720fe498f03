"""Takes messages from a subscription as they come."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from google.api_core import exceptions

from pipeline.cloud.connection.emulators import PUBSUB, check_emulator
from pipeline.cloud.connection.errors import explained
from pipeline.cloud.pubsub.backlog import message_of
from pipeline.cloud.pubsub.subscriber import subscriber_client
from pipeline.core.events.message import Message

_MOST_MESSAGES = 1000
_IDLE_SECONDS = 0.2
_REQUEST_SECONDS = 10.0


def followed(subscription: str, limit: int | None, stopped: Callable[[], bool]) -> Iterator[list[Message]]:
    """Yields messages as they come. Those of a list are acknowledged when the next list is asked for.

    If none is, they are returned to the subscription.

    Args:
        subscription: the subscription's full path.
        limit: the number of messages after which it ends; None for no end.
        stopped: a function, called between pulls, that ends it by returning True.

    Raises:
        ServerError: the subscription does not exist, or the server is unavailable.
    """
    check_emulator(PUBSUB)
    left = limit or 0
    with explained(f"subscription {subscription}"), subscriber_client() as client:
        while not stopped() and (limit is None or left):
            most = min(left, _MOST_MESSAGES) if limit else _MOST_MESSAGES
            received = client.pull(
                subscription=subscription, max_messages=most, return_immediately=True, timeout=_REQUEST_SECONDS
            ).received_messages
            if not received:
                time.sleep(_IDLE_SECONDS)
                continue
            ack_ids, taken = [each.ack_id for each in received], False
            try:
                yield [message_of(each.message) for each in received]
                taken = True
            finally:
                if not taken:
                    with suppress(exceptions.GoogleAPIError):
                        client.modify_ack_deadline(subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=0)
            client.acknowledge(subscription=subscription, ack_ids=ack_ids)
            left -= len(received)
