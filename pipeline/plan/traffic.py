"""What passes in a second: messages through Pub/Sub, and writes to Bigtable."""

from dataclasses import dataclass

_LEAST_BILLED_BYTES = 1000
_OVERHEAD_BYTES = 20 + 16  # a message's timestamp, and the text of its id


@dataclass(frozen=True)
class Messages:
    """The messages of a fleet.

    Attributes:
        batch: events in a message.
        per_second: messages of all sensors in a second.
        bytes: the mean size of a message's data.
        bytes_per_second: bytes of all data in a second.
        billed_per_second: bytes that Pub/Sub counts in a second for publishing and delivering each message once.
    """

    batch: int
    per_second: float
    bytes: float
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
    return max(_LEAST_BILLED_BYTES, size + _OVERHEAD_BYTES)
