"""Turns rows that Bigtable refuses into dead letters: the encoded entry and the reason, within Pub/Sub's limits.

Such a letter is not a sensor's message, so it cannot be replayed. Its ``message_type`` names the type of its payload:

    MutateRowsRequest.Entry.FromString(message.data)
"""

from datetime import datetime
from typing import NamedTuple

from pipeline.core.events.dead_letter import DETAIL, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES, REASON, STEP, TIME, clipped
from pipeline.core.events.message import MESSAGE_TYPE, Message
from pipeline.core.notation.times import format_time, from_datetime

ROW_REFUSED = "ROW_REFUSED"
"""The dead letter's reason."""
ENTRY_TYPE = "google.bigtable.v2.MutateRowsRequest.Entry"
"""The dead letter's message type."""
ROW_KEY = "row_key"
"""The attribute with the row key as text. Bytes that are not UTF-8 are written like ``\\xff``."""

_ATTRIBUTES_BYTES = 8 * MAX_VALUE_BYTES  # more than the six attributes take
_ROOM_FOR_CUTS = 100  # bytes of the detail that are reserved for the note on a cut


class RefusedRow(NamedTuple):
    """A row that the server permanently refuses."""

    key: bytes
    code: str
    """The status code, such as ``INVALID_ARGUMENT``."""
    message: str
    """The server's error message."""
    entry: bytes
    """The encoded ``MutateRowsRequest.Entry``."""


def refused_row_letter(row: RefusedRow, table: str, step: str, now: datetime) -> Message:
    """Returns the dead letter of a row. What does not fit is truncated; if that is the entry, the detail notes it.

    ``table`` is the full name of the table that refused the row, ``step`` the label of the transform that writes rows.
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
