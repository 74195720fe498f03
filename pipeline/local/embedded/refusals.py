"""How a request is refused: with one of gRPC's status codes and a message."""

from typing import Any

from grpc import StatusCode


class RequestRefused(Exception):
    """A request that is answered with an error.

    Args:
        code: the status of the answer.
        message: the text of the answer.
    """

    def __init__(self, code: StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestRefused:
    """Returns the refusal of a request that no server would accept."""
    return RequestRefused(StatusCode.INVALID_ARGUMENT, message)


def not_built(what: str) -> RequestRefused:
    """Returns the refusal of a request for something that the built-in emulator does not have."""
    return RequestRefused(StatusCode.UNIMPLEMENTED, f"the built-in emulator has no {what}")


def check_built(message: Any, built: set[str], what: str) -> None:
    """Refuses a message that sets other fields than those that are built."""
    for field, _ in message.ListFields():
        if field.name not in built:
            raise not_built(f"{field.name} of a {what}")
