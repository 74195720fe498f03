"""A gRPC server in front of Bigtable's emulator that fails on purpose, as scripted by a test.

    with BigtableProxy(address) as proxy:
        proxy.mutations = first(3, refusing(StatusCode.UNAVAILABLE, share=0.3))
        ...  # a client whose BIGTABLE_EMULATOR_HOST is proxy.address
        assert proxy.refused[StatusCode.UNAVAILABLE] > 0

A fault is a function that takes a request's content and returns an action, or ``None`` to forward the request
unchanged. All other calls are forwarded byte for byte, including the admin API's.
"""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs
from zlib import crc32

import grpc
from google.cloud.bigtable_v2.types import MutateRowsRequest, MutateRowsResponse, ReadRowsRequest
from grpc import StatusCode

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_THREADS = 32
# These belong to one connection and are not forwarded.
_HOP_BY_HOP = ("user-agent", "grpc-accept-encoding", "accept-encoding", "te", "content-type")

_MutateRowsRequest = MutateRowsRequest.pb()
_MutateRowsResponse = MutateRowsResponse.pb()
_ReadRowsRequest = ReadRowsRequest.pb()


@dataclass(frozen=True)
class MutationsAction:
    """The outcome of one ``MutateRows``. With ``error``, only some entries are applied or answered."""

    refused: Mapping[int, StatusCode] = field(default_factory=dict)
    """Statuses of the entries, by index, that are refused instead of applied."""
    error: StatusCode | None = None
    """The status that ends the call."""
    applied: int = 0
    """Before the error: how many of the first entries are applied."""
    answered: int = 0
    """Before the error: how many of the first entries are answered."""
    delay_s: float = 0.0
    """Delay of the request."""
    answer_delay_s: float = 0.0
    """Delay of the answer, after the entries are applied."""


@dataclass(frozen=True)
class ReadAction:
    """The outcome of one ``ReadRows``."""

    error: StatusCode | None = None
    """The status that ends the call after ``messages`` of its messages."""
    messages: int = 0
    delay_s: float = 0.0


MutationsFault = Callable[[Sequence[Any]], MutationsAction | None]
"""Takes the entries of a ``MutateRowsRequest``."""
ReadFault = Callable[[Any], ReadAction | None]
"""Takes a ``ReadRowsRequest``."""


class BigtableProxy:
    """A proxy with scripted faults; see the module."""

    def __init__(self, target: str) -> None:
        self.mutations: MutationsFault | None = None
        self.reads: ReadFault | None = None
        self.calls: Counter[str] = Counter()
        """Calls by method, such as ``MutateRows``."""
        self.app_profiles: dict[str, set[str]] = defaultdict(set)
        """The app profiles that route the calls, by method of the data API; empty text for the default one."""
        self.entries = 0
        """Entries of all ``MutateRows`` calls."""
        self.refused: Counter[StatusCode] = Counter()
        """Entries that were refused, by status."""
        self.failed: Counter[StatusCode] = Counter()
        """Calls that the proxy ended with an error, by status."""
        self.delayed = 0
        """Delayed calls."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._channel = grpc.insecure_channel(target, options=_UNLIMITED)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_UNLIMITED)
        self._server.add_generic_rpc_handlers([_Handler(self._serve)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> "BigtableProxy":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.stop(grace=None).wait()
        self._channel.close()

    def _serve(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        name = method.rpartition("/")[2]
        self._count(self.calls, name)
        if method.startswith("/google.bigtable.v2.Bigtable/"):
            routing = parse_qs(dict(context.invocation_metadata())["x-goog-request-params"])
            with self._lock:
                self.app_profiles[name].update(routing.get("app_profile_id", [""]))
        if name == "MutateRows":
            yield from self._mutate_rows(method, next(requests), context)
        elif name == "ReadRows":
            yield from self._read_rows(method, next(requests), context)
        else:
            yield from self._forward(method, requests, context)

    def _mutate_rows(self, method: str, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = _MutateRowsRequest.FromString(data)
        with self._lock:
            self.entries += len(request.entries)
            action = self.mutations(list(request.entries)) if self.mutations else None
        if action is None:
            yield from self._forward(method, [data], context)
            return
        self._wait(action.delay_s)
        end = len(request.entries) if action.error is None else action.applied
        forwarded = [index for index in range(end) if index not in action.refused]
        answers = dict.fromkeys(action.refused, b"")
        if forwarded:
            part = _MutateRowsRequest()
            part.CopyFrom(request)
            del part.entries[:]
            part.entries.extend(request.entries[index] for index in forwarded)
            for answer in self._forward(method, [part.SerializeToString()], context):
                for entry in _MutateRowsResponse.FromString(answer).entries:
                    answers[forwarded[entry.index]] = entry.status.SerializeToString()
        self._wait(action.answer_delay_s)
        answered = range(len(request.entries) if action.error is None else action.answered)
        response = _MutateRowsResponse()
        for index, status in sorted(answers.items()):
            if index in answered:
                entry = response.entries.add(index=index)
                entry.status.MergeFromString(status)
                if code := action.refused.get(index):
                    self._count(self.refused, code)
                    entry.status.code, entry.status.message = code.value[0], "refused on purpose"
        if response.entries:
            yield response.SerializeToString()
        self._fail(context, action.error)

    def _read_rows(self, method: str, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            action = self.reads(_ReadRowsRequest.FromString(data)) if self.reads else None
        if action is None:
            yield from self._forward(method, [data], context)
            return
        self._wait(action.delay_s)
        if action.error is None or action.messages:
            for count, answer in enumerate(self._forward(method, [data], context), start=1):
                yield answer
                if action.error and count == action.messages:
                    break
        self._fail(context, action.error)

    def _forward(self, method: str, requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yields the target's answers, and ends the call with the target's error if there is one."""
        metadata = [pair for pair in context.invocation_metadata() if pair[0] not in _HOP_BY_HOP]
        call = self._channel.stream_stream(method)(iter(requests), metadata=metadata, timeout=context.time_remaining())
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError:
            context.set_trailing_metadata(call.trailing_metadata() or ())
            context.abort(call.code(), call.details())
        finally:
            call.cancel()

    def _fail(self, context: grpc.ServicerContext, code: StatusCode | None) -> None:
        if code is not None:
            self._count(self.failed, code)
            context.abort(code, "failed on purpose")

    def _wait(self, seconds: float) -> None:
        if seconds:
            with self._lock:
                self.delayed += 1
            self._closing.wait(seconds)

    def _count(self, counter: Counter, key: Any) -> None:
        with self._lock:
            counter[key] += 1


class _Handler(grpc.GenericRpcHandler):
    """Serves every method as bytes in and bytes out: on the wire a unary call is a stream of one message."""

    def __init__(self, serve: Callable[[str, Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]) -> None:
        self._serve = serve

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._serve(method, requests, context))


def refusing(code: StatusCode, *, share: float = 0.3, least: int = 1, seed: int = 1) -> MutationsFault:
    """Refuses a share of the entries of every request, rounded down, but at least ``least``."""
    rng = random.Random(seed)

    def fault(entries: Sequence[Any]) -> MutationsAction:
        count = max(least, int(share * len(entries)))
        return MutationsAction(refused=dict.fromkeys(rng.sample(range(len(entries)), count), code))

    return fault


def refusing_rows(code: StatusCode, *, one_in: int = 3) -> MutationsFault:
    """Refuses the same rows however often they are tried."""

    def fault(entries: Sequence[Any]) -> MutationsAction:
        chosen = [index for index, entry in enumerate(entries) if crc32(entry.row_key) % one_in == 0]
        return MutationsAction(refused=dict.fromkeys(chosen, code))

    return fault


def breaking(code: StatusCode, *, applied: float = 0.5, answered: float = 0.25) -> MutationsFault:
    """Ends every call with an error, after these shares of its entries were applied and answered."""

    def fault(entries: Sequence[Any]) -> MutationsAction:
        return MutationsAction(
            error=code, applied=round(applied * len(entries)), answered=round(answered * len(entries))
        )

    return fault


def failing(code: StatusCode) -> MutationsFault:
    """Ends every call with an error before anything is applied."""
    return breaking(code, applied=0, answered=0)


def slow(seconds: float) -> MutationsFault:
    """Delays every answer."""
    return lambda _: MutationsAction(answer_delay_s=seconds)


def first(requests: int, fault: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Applies the fault to the first requests only, writes or reads."""
    left = iter(range(requests))
    return lambda request: fault(request) if next(left, None) is not None else None
