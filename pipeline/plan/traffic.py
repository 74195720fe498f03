"""What passes in a second: messages through Pub/Sub, and writes to Bigtable."""

from dataclasses import dataclass

LEAST_BILLED_BYTES = 1000
"""What Pub/Sub counts for a request at least."""

OVERHEAD_BYTES = 20 + 16
"""What it adds to a message for its timestamp, and for the text of its id."""


@dataclass(frozen=True)
class Messages:
    """The messages of a fleet.

    Attributes:
        batch: events in a message.
        per_second: messages of all sensors in a second.
        bytes: the mean size of a message's data.
        added_bytes: the bytes that Pub/Sub counts beside a message's data: its attributes, time and id.
        billed_bytes: the bytes that Pub/Sub counts for publishing a message, and again for delivering it.
        bytes_per_second: bytes of all data in a second.
        billed_per_second: bytes that Pub/Sub counts in a second for publishing and delivering each message once.
    """

    batch: int
    per_second: float
    bytes: float
    added_bytes: float
    billed_bytes: float
    bytes_per_second: float
    billed_per_second: float


@dataclass(frozen=True)
class Writes:
    """Rows, cells (a mutation each) and encoded bytes written in a second."""

    rows: float
    cells: float
    bytes: float


def billed_bytes(size: float) -> float:
    """Returns the bytes that Pub/Sub counts for a message, alone in its request, with so many of data and attributes.

    It adds 20 bytes for the timestamp and the message's id, and counts 1,000 at least: cloud.google.com/pubsub/pricing
    """
    return max(LEAST_BILLED_BYTES, size + OVERHEAD_BYTES)
