"""Sends one ``MutateRows`` request, returns the result of each entry, and classifies errors. Retries nothing."""

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.api_core.exceptions import GoogleAPICallError, from_grpc_status
from google.api_core.gapic_v1.method import wrap_method
from google.api_core.gapic_v1.routing_header import to_grpc_metadata
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports.base import DEFAULT_CLIENT_INFO
from google.cloud.bigtable_v2.types import FeatureFlags, MutateRowsResponse
from google.rpc.error_details_pb2 import RetryInfo

from pipeline.cloud.connection.errors import is_too_large, is_transient
from pipeline.cloud.connection.names import TableName

_METHOD = "/google.bigtable.v2.Bigtable/MutateRows"
_Response = MutateRowsResponse.pb()  # the plain protobuf class, many times as fast as its wrapper

# Asks the server for flow control (RateLimitInfo) and for the delay before a retry (RetryInfo).
_FEATURES = FeatureFlags(mutate_rows_rate_limit=True, mutate_rows_rate_limit2=True, retry_info=True)
_METADATA = (("bigtable-features", base64.urlsafe_b64encode(FeatureFlags.serialize(_FEATURES)).decode()),)

_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
_SERVER_CODES = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED"})


class Fault(Enum):
    """The part at fault for a failure; the value is the remedy."""

    TRANSIENT = "retry"
    ROW = "refuse the row"
    REQUEST = "some row of the request is at fault: send its rows apart to find it"
    SERVER = "raise"


class MutateRowsResult(NamedTuple):
    """The result of one request."""

    has_status: bytes
    """One byte for each entry: 1 if the server returned its status, else 0."""
    errors: Mapping[int, GoogleAPICallError]
    """The statuses other than OK, by the entry's index."""
    call_error: GoogleAPICallError | None
    """The error that ended the call, if it failed."""
    rate_limit: tuple[float, float] | None
    """The last ``RateLimitInfo``: a factor for the load, and the seconds in which no other factor applies."""
    took_s: float


Call = Callable[..., Iterable[Any]]


def call_for(client: BigtableClient, name: TableName) -> Call:
    """Returns a function that sends an encoded ``MutateRowsRequest``: the client's own method would encode it again."""
    method = client.transport.grpc_channel.unary_stream(_METHOD, response_deserializer=_Response.FromString)
    wrapped = wrap_method(method, client_info=DEFAULT_CLIENT_INFO)
    return partial(wrapped, retry=None, metadata=(*_METADATA, to_grpc_metadata(name.target)))


def mutate_rows(call: Call, request: bytes, entries: int, timeout_s: float) -> MutateRowsResult:
    """Sends an encoded ``MutateRowsRequest`` with this number of entries, once.

    The server gets the timeout as the deadline of the call.
    """
    began = time.monotonic()
    has_status = bytearray(entries)
    statuses: dict[int, Any] = {}
    rate_limit = None
    call_error = None
    try:
        for response in call(request, timeout=timeout_s):
            entries_of = response.entries
            for index in [entry.index for entry in entries_of]:
                has_status[index] = 1
            statuses |= {entry.index: entry.status for entry in entries_of if entry.status.code}
            if response.HasField("rate_limit_info"):
                info = response.rate_limit_info
                rate_limit = info.factor, info.period.ToTimedelta().total_seconds()
    except GoogleAPICallError as caught:
        call_error = caught
    errors = {index: _error_of(status) for index, status in statuses.items()}
    return MutateRowsResult(bytes(has_status), errors, call_error, rate_limit, time.monotonic() - began)


def fault_of_entry(error: GoogleAPICallError) -> Fault:
    """Classifies the status of one entry."""
    if is_transient(error):
        return Fault.TRANSIENT
    return Fault.SERVER if code_of(error) in _SERVER_CODES else Fault.ROW


def fault_of_call(error: GoogleAPICallError) -> Fault:
    """Classifies the error of a whole call. No row is at fault for a missing table, for example."""
    if is_too_large(error) or code_of(error) == "INVALID_ARGUMENT":
        return Fault.REQUEST
    return Fault.TRANSIENT if is_transient(error) else Fault.SERVER


def code_of(error: GoogleAPICallError) -> str:
    """Returns the name of the status code, such as ``UNAVAILABLE``."""
    code = error.grpc_status_code
    return getattr(code, "name", None) or str(code)


def retry_delay_s(errors: Iterable[GoogleAPICallError]) -> float:
    """Returns the longest delay that the server asks for before a retry; 0 if it asks for none."""
    delays = (
        detail.retry_delay.ToTimedelta().total_seconds()
        for error in errors
        for detail in error.details
        if isinstance(detail, RetryInfo)
    )
    return max(delays, default=0.0)


def _error_of(status: Any) -> GoogleAPICallError:
    """Converts a ``google.rpc.Status`` to the exception that Google's clients would raise."""
    return from_grpc_status(status.code, status.message, details=_retry_infos(status.details))


def _retry_infos(details: Sequence[Any]) -> list[RetryInfo]:
    found = []
    for detail in details:
        info = RetryInfo()
        if detail.Is(RetryInfo.DESCRIPTOR) and detail.Unpack(info):
            found.append(info)
    return found
