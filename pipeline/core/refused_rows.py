"""Rows that Bigtable refuses, as dead letters: the encoded entry, and beside it why, within Pub/Sub's limits.

Such a letter is not a sensor's message, so it can't be replayed; ``message_type`` says what its bytes are:

    MutateRowsRequest.Entry.FromString(message.data)
"""

from datetime import datetime
from typing import NamedTuple

from pipeline.core.dead_letters import DETAIL, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES, REASON, STEP, TIME, clipped
from pipeline.core.messages import MESSAGE_TYPE, Message
from pipeline.core.times import format_time, from_datetime

ROW_REFUSED = "ROW_REFUSED"
"""The reason."""
ENTRY_TYPE = "google.bigtable.v2.MutateRowsRequest.Entry"
"""The message type."""
ROW_KEY = "row_key"
"""The attribute of the row's key: as text, what is not UTF-8 in it as ``\\xff``."""

_ATTRIBUTES_BYTES = 8 * MAX_VALUE_BYTES  # more than the six attributes take
_ROOM_FOR_CUTS = 100  # of the detail's bytes, where there is something to say of cuts


class RefusedRow(NamedTuple):
    """A row that the server does not take, and never will."""

    key: bytes
    code: str
    """Its status, ``INVALID_ARGUMENT`` for one."""
    message: str
    """In the server's words."""
    entry: bytes
    """The encoded ``MutateRowsRequest.Entry``."""


def refused_row_letter(row: RefusedRow, table: str, step: str, now: datetime) -> Message:
    """The dead letter of a row. What does not fit is cut at its end, the entry too, and the detail says so.

    Args:
        row: what was refused.
        table: by which table, in full.
        step: the label of the transform that writes.
        now: when.
    """
    key = row.key.decode(errors="backslashreplace")
    data = row.entry[: MAX_MESSAGE_BYTES - _ATTRIBUTES_BYTES]
    cut = f" (entry cut from {len(row.entry)} to {len(data)} bytes)" if len(data) < len(row.entry) else ""
    message = " ".join(row.message.split())
    detail = clipped(f"table {table}: row {clipped(key, 256)}: {row.code}: {message}", MAX_VALUE_BYTES - _ROOM_FOR_CUTS)
    return Message(
        data,
        {
            MESSAGE_TYPE: ENTRY_TYPE,
            ROW_KEY: clipped(key, MAX_VALUE_BYTES),
            REASON: ROW_REFUSED,
            DETAIL: detail + cut,
            STEP: step,
            TIME: format_time(from_datetime(now)),
        },
    )
