"""One ``MutateRows`` and what became of it, entry by entry: no retry, no judgement but what its statuses mean."""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import grpc
from google.api_core.exceptions import GoogleAPICallError, from_grpc_status
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.types import FeatureFlags, MutateRowsRequest, MutateRowsResponse
from google.rpc.error_details_pb2 import RetryInfo

from pipeline.cloud.errors import is_too_large, is_transient

_Request = MutateRowsRequest.pb()  # the plain protobuf class: its wrapper takes many times as long

# The server is to say how much it wants (RateLimitInfo), and how long a retry is to wait (RetryInfo).
_FEATURES = FeatureFlags(mutate_rows_rate_limit=True, mutate_rows_rate_limit2=True, retry_info=True)
_METADATA = (("bigtable-features", base64.urlsafe_b64encode(FeatureFlags.serialize(_FEATURES)).decode()),)

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
_OF_THE_SERVER = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})


class Fault(Enum):
    """Whose fault a failure is, and so what is to be done."""

    PASSING = "retried"
    ROW = "the row's: refused"
    REQUEST = "some row's of the request: found by sending them apart"
    SERVER = "raised"


class Answer(NamedTuple):
    """What became of one request."""

    answered: bytes
    """For each entry 1 where it got a status, else 0."""
    statuses: Mapping[int, GoogleAPICallError]
    """By entry; those that are OK are left out."""
    error: GoogleAPICallError | None
    """How the call ended, where it failed."""
    rate_limit: tuple[float, float] | None
    """The server's factor for the load, and for how many seconds no other one counts; the last one it said."""
    took_s: float


def mutate_rows(client: BigtableClient, request: bytes, entries: int, timeout_s: float) -> Answer:
    """Sends an encoded ``MutateRowsRequest`` of so many entries, once.

    The server is told the timeout as the call's deadline.
    """
    began = time.monotonic()
    answered = bytearray(entries)
    statuses: dict[int, Any] = {}
    rate_limit = None
    error = None
    try:
        wrapped = MutateRowsRequest.wrap(_Request.FromString(request))
        for response in client.mutate_rows(wrapped, retry=None, timeout=timeout_s, metadata=_METADATA):
            plain = MutateRowsResponse.pb(response)
            for entry in plain.entries:
                index = entry.index
                answered[index] = 1
                if entry.status.code:
                    statuses[index] = entry.status
            if plain.HasField("rate_limit_info"):
                info = plain.rate_limit_info
                rate_limit = info.factor, info.period.ToTimedelta().total_seconds()
    except GoogleAPICallError as caught:
        error = caught
    errors = {index: _error_of(status) for index, status in statuses.items()}
    return Answer(bytes(answered), errors, error, rate_limit, time.monotonic() - began)


def fault_of_entry(error: GoogleAPICallError) -> Fault:
    """Of a status that one entry got."""
    if is_transient(error):
        return Fault.PASSING
    return Fault.SERVER if code_of(error) in _OF_THE_SERVER else Fault.ROW


def fault_of_call(error: GoogleAPICallError) -> Fault:
    """Of how a call ended as a whole: a missing table, for one, is no row's fault."""
    if is_too_large(error) or code_of(error) == "INVALID_ARGUMENT":
        return Fault.REQUEST
    return Fault.PASSING if is_transient(error) else Fault.SERVER


def code_of(error: GoogleAPICallError) -> str:
    """The status by its name."""
    code = error.grpc_status_code
    return getattr(code, "name", None) or str(code)


def retry_delay_s(errors: Iterable[GoogleAPICallError]) -> float:
    """How long the server wants a retry to wait: the longest that it said; 0 where it said nothing."""
    delays = (
        detail.retry_delay.ToTimedelta().total_seconds()
        for error in errors
        for detail in error.details
        if isinstance(detail, RetryInfo)
    )
    return max(delays, default=0.0)


def _error_of(status: Any) -> GoogleAPICallError:
    """A ``google.rpc.Status`` as Google's clients raise it."""
    return from_grpc_status(status.code, status.message, details=_retry_infos(status.details))


def _retry_infos(details: Sequence[Any]) -> list[RetryInfo]:
    found = []
    for detail in details:
        info = RetryInfo()
        if detail.Is(RetryInfo.DESCRIPTOR) and detail.Unpack(info):
            found.append(info)
    return found
