"""Why messages and events are refused."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a message, or one event of a batch, becomes a dead letter. The set is closed."""

    UNKNOWN_MESSAGE_TYPE = "UNKNOWN_MESSAGE_TYPE"
    """The attribute message_type names a type that the job does not read, or is missing, and no type is the default."""
    UNKNOWN_ENCODING = "UNKNOWN_ENCODING"
    """The attribute googclient_schemaencoding is neither BINARY nor JSON."""
    UNPARSEABLE = "UNPARSEABLE"
    """The bytes are not that message in that encoding, or are JSON that protobuf's mapping does not allow."""
    MISSING_SENSOR_ID = "MISSING_SENSOR_ID"
    """sensor_id is empty or blank."""
    INVALID_SENSOR_ID = "INVALID_SENSOR_ID"
    """sensor_id is longer than 256 bytes, is reserved, or contains '#' or anything but printable ASCII."""
    MISSING_EVENT_TIME = "MISSING_EVENT_TIME"
    """event_time is not set."""
    INVALID_EVENT_TIME = "INVALID_EVENT_TIME"
    """event_time is not a valid protobuf Timestamp, or a value that a mapping takes for the time is none."""
    EVENT_TIME_TOO_EARLY = "EVENT_TIME_TOO_EARLY"
    """event_time is before 2000-01-01T00:00:00Z."""
    EVENT_TIME_IN_FUTURE = "EVENT_TIME_IN_FUTURE"
    """event_time is later than now + --max-future."""
    NO_READINGS = "NO_READINGS"
    """The event has no readings, and no metadata that the table keeps alone."""
    TOO_MANY_READINGS = "TOO_MANY_READINGS"
    """The event has more than 1,000 readings."""
    INVALID_METRIC_NAME = "INVALID_METRIC_NAME"
    """A metric name does not match [A-Za-z_][A-Za-z0-9_.-]{0,127}."""
    NON_FINITE_VALUE = "NON_FINITE_VALUE"
    """A reading is NaN or infinite."""
    TOO_MUCH_METADATA = "TOO_MUCH_METADATA"
    """The event has more than 100 metadata entries."""
    INVALID_METADATA_NAME = "INVALID_METADATA_NAME"
    """A metadata name does not match [A-Za-z_][A-Za-z0-9_.-]{0,127}."""
    METADATA_TOO_LONG = "METADATA_TOO_LONG"
    """A metadata value is longer than 4 KiB of UTF-8."""
    MISSING_KEY_FIELD = "MISSING_KEY_FIELD"
    """A metadata entry that is part of the table's row keys, or event_id, is missing or empty."""
    INVALID_KEY_FIELD = "INVALID_KEY_FIELD"
    """A metadata entry that is part of the table's row keys, or event_id, contains '#'."""
    KEY_TOO_LONG = "KEY_TOO_LONG"
    """The row key would be longer than Bigtable's 4 KiB."""
    RESERVED_KEY = "RESERVED_KEY"
    """The row key would start with a reserved word, such as agg# or latest#, like the table's own rows."""
    NO_FAMILY = "NO_FAMILY"
    """No column family of the table accepts a metric or metadata entry of the event."""
    ROWS_TOO_LARGE = "ROWS_TOO_LARGE"
    """The table stores one row per metric, and the event's rows would be more than 128 times the event's size."""
    INEXACT_INTEGER = "INEXACT_INTEGER"
    """A reading is an integer beyond 2^53 that a double cannot hold exactly."""
    NOT_A_NUMBER = "NOT_A_NUMBER"
    """A value that a mapping takes for a reading is not a number."""
    MISSING_FIELD = "MISSING_FIELD"
    """A value that a mapping requires is not set."""
    NAME_COLLISION = "NAME_COLLISION"
    """A mapping gives two values of one sensor and time the same name."""
    TOO_MANY_ELEMENTS = "TOO_MANY_ELEMENTS"
    """A mapping goes through more than 100,000 elements of one message, or a decoder yields more events."""
    UNKNOWN_REVISION = "UNKNOWN_REVISION"
    """The message's schema revision does not exist, or does not fit its mapping."""
    UNKNOWN_FIELDS = "UNKNOWN_FIELDS"
    """The message has fields that SensorEvent does not have, and --unknown-fields=refuse is set."""
    REFUSED_BY_DECODER = "REFUSED_BY_DECODER"
    """The function of --message-decoder refused the message, or the function of --file-decoder a record."""
    DECODER_FAILED = "DECODER_FAILED"
    """The function of a decoder raised another exception, or yielded something other than SensorEvents."""


class BadData(Exception):
    """Raised for a message or event that must become a dead letter. Any other exception is a bug or a server error."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class RefusedMessageError(Exception):
    """Raised by a decoder function for a message that it cannot read. ``str()`` becomes the dead letter's detail.

    A decoder of files yields it for a record, and raises it for the rest of the file.

    Args:
        detail: the problem.
        record: the record of a file as text or bytes, for the payload of its dead letter.
    """

    def __init__(self, detail: str = "", *, record: str | bytes = b"") -> None:
        super().__init__(detail)
        self.record = record.encode(errors="surrogateescape") if isinstance(record, str) else bytes(record)
