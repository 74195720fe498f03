"""Readings that are not valid: not finite, or outside their metric's range."""

from enum import StrEnum


class Invalid(StrEnum):
    """What becomes of an event with a reading that is not valid, as the key ``invalid`` says."""

    DROP_READING = "drop reading"
    """The reading is left out, and counted; the event's other readings are kept."""
    REFUSE_EVENT = "refuse event"
    """The event becomes a dead letter."""
