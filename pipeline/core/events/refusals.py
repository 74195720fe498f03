"""What a decoder function raises for a message that must become a dead letter."""


class RefusedMessage(Exception):
    """Raised by a decoder function for a message that it cannot read. ``str()`` becomes the dead letter's detail."""
