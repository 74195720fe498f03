"""Services of gRPC: their methods, which are coroutines of a class, and how these refuse a request."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, ClassVar

import grpc
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


class Service:
    """A service. Its subclass names it, and marks its methods with :func:`method`."""

    name: ClassVar[str]

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Returns the handlers of the service's methods, by full name."""
        marked = {name: getattr(self, name) for name in dir(type(self)) if not name.startswith("_")}
        return {
            f"/{self.name}/{name}": function.handler_of(function)
            for name, function in marked.items()
            if hasattr(function, "handler_of")
        }


def method(request: Any, response: Any, *, streams: bool = False, takes_stream: bool = False) -> Callable[..., Any]:
    """Marks a coroutine as a method of a service, for the classes of its request and its response.

    Args:
        request: the request's class of Google's client, or of protobuf.
        response: the response's class.
        streams: whether the method is a generator of responses.
        takes_stream: whether the method receives an iterator of requests.
    """
    kinds = {
        (False, False): (grpc.unary_unary_rpc_method_handler, _answering),
        (False, True): (grpc.unary_stream_rpc_method_handler, _streaming),
        (True, True): (grpc.stream_stream_rpc_method_handler, _streaming),
    }
    make, wrap = kinds[takes_stream, streams]
    read, write = (each.pb() if hasattr(each, "pb") else each for each in (request, response))

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.handler_of = lambda bound: make(  # type: ignore[attr-defined]
            partial(wrap, bound), request_deserializer=read.FromString, response_serializer=write.SerializeToString
        )
        return function

    return mark


async def _answering(function: Callable[..., Any], request: Any, context: grpc.aio.ServicerContext) -> Any:
    try:
        return await function(request)
    except RequestRefused as refused:
        await context.abort(refused.code, str(refused))


async def _streaming(
    function: Callable[..., AsyncIterator[Any]], request: Any, context: grpc.aio.ServicerContext
) -> AsyncIterator[Any]:
    try:
        async for response in function(request):
            yield response
    except RequestRefused as refused:
        await context.abort(refused.code, str(refused))


class Methods(grpc.GenericRpcHandler):
    """The methods of services. Any other method answers UNIMPLEMENTED with its name.

    Args:
        services: the services.
    """

    def __init__(self, *services: Service) -> None:
        self._handlers = {name: handler for service in services for name, handler in service.handlers().items()}

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Returns the handler of a call."""
        return self._handlers.get(call.method) or grpc.unary_unary_rpc_method_handler(partial(_refuse, call.method))


async def _refuse(name: str, _: bytes, context: grpc.aio.ServicerContext) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, f"the built-in emulator has no {name}")
