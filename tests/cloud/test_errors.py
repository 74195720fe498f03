"""Which errors of Google's servers and clients are worth another attempt."""

import pytest
from google.api_core.exceptions import from_grpc_status
from grpc import StatusCode

from pipeline.cloud.errors import PUBSUB_TRANSIENT, TRANSIENT, is_too_large, is_transient

PASSING = ["ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


def with_code(kinds: tuple[type[Exception], ...]) -> list[str]:
    return sorted(code.name for code in StatusCode if isinstance(from_grpc_status(code, ""), kinds))


def test_transient_codes() -> None:
    """Five codes pass with any service; Pub/Sub has two more."""
    assert with_code(TRANSIENT) == PASSING
    assert with_code(PUBSUB_TRANSIENT) == sorted([*PASSING, "INTERNAL", "UNKNOWN"])
    assert sorted(code.name for code in StatusCode if is_transient(from_grpc_status(code, "no entry"))) == PASSING


@pytest.mark.parametrize(
    "message", ["Received RST_STREAM with error code 2", "Received unexpected EOS on DATA frame from server"]
)
def test_a_stream_reset_is_transient(message: str) -> None:
    """An INTERNAL error that reports a broken connection."""
    assert is_transient(from_grpc_status(StatusCode.INTERNAL, message))


def test_a_message_too_large_is_not_transient() -> None:
    """It has the code of an exhausted quota, and another attempt would be as large."""
    error = from_grpc_status(StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 4)")
    assert is_too_large(error)
    assert not is_transient(error)
    assert not is_too_large(from_grpc_status(StatusCode.RESOURCE_EXHAUSTED, "quota of reads is used up"))
    assert not is_too_large(from_grpc_status(StatusCode.INTERNAL, "message larger than max"))
