"""The one table that maps what went wrong to a gRPC status, and the one interceptor that applies it."""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pipeline import errors
from server.logs import request_id

log = logging.getLogger(__name__)

_TABLE: dict[type[errors.PipelineError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BadImage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownModel: grpc.StatusCode.NOT_FOUND,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
}
_REQUEST_ID_KEY = "x-request-id"
_PUSHBACK_KEY = "grpc-retry-pushback-ms"
_MAX_REQUEST_ID = 128
# Not health and reflection, which answer for themselves.
_SERVICE_PREFIX = "/warmlane.v1."

Metadata = tuple[tuple[str, str], ...]


def code_of(error: Exception) -> grpc.StatusCode:
    """The status of an error: that of its nearest ancestor in the table, INTERNAL for what nobody foresaw."""
    for ancestor in type(error).__mro__:
        if ancestor in _TABLE:
            return _TABLE[ancestor]
    return grpc.StatusCode.INTERNAL


def details_of(error: Exception, error_id: str) -> str:
    """What the caller reads. An unforeseen error's own words stay in the log."""
    if code_of(error) is grpc.StatusCode.INTERNAL:
        return f"internal error; the server's log says more under request id {error_id}"
    return str(error)


def as_status(error: Exception, error_id: str) -> status_pb2.Status:
    """An error of one image of a batch or stream, with its request id and, where there is one, the time to wait."""
    code: int = code_of(error).value[0]
    return status_pb2.Status(code=code, message=details_of(error, error_id), details=list(_details(error, error_id)))


def _details(error: Exception, error_id: str) -> list[any_pb2.Any]:
    messages: list[Any] = [error_details_pb2.RequestInfo(request_id=error_id)]
    if isinstance(error, errors.Overloaded):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(error.retry_after_ms)
        messages.append(error_details_pb2.RetryInfo(retry_delay=delay))
    packed = [any_pb2.Any() for _ in messages]
    for box, message in zip(packed, messages, strict=True):
        box.Pack(message)
    return packed


def log_unforeseen(error: Exception, error_id: str) -> None:
    """Write the trace of an error that has no row in the table; the others are answers, not events."""
    if code_of(error) is grpc.StatusCode.INTERNAL:
        log.error("request %s failed", error_id, exc_info=error)


def let_go(error: Exception) -> None:
    """Drop the traces of an error that has been told, and of what it came from: their frames hold the image, and the
    image's future holds the error.

    They would otherwise stay until the garbage collector comes by.
    """
    error.__traceback__ = error.__context__ = error.__cause__ = None


def _trailing(error: Exception | None) -> Metadata:
    metadata: Metadata = ((_REQUEST_ID_KEY, request_id.get()),)
    if isinstance(error, errors.Overloaded):
        metadata += ((_PUSHBACK_KEY, str(error.retry_after_ms)),)
    return metadata


def _call_id(metadata: Any) -> str:
    """The id that the caller sent, if it is fit to be sent back, or a new one."""
    for key, value in metadata or ():
        if key == _REQUEST_ID_KEY and 0 < len(value) <= _MAX_REQUEST_ID and value.isascii() and value.isprintable():
            return str(value)
    return secrets.token_hex(8)


class StatusInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Gives each call its request id, and turns what a handler raises into a status with trailing metadata."""

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(call_details)
        if handler is None or not call_details.method.startswith(_SERVICE_PREFIX):
            return handler
        call_id = _call_id(call_details.invocation_metadata)
        read = _reader(handler.request_deserializer)
        if handler.stream_stream is not None:
            guarded = _guarded(handler.stream_stream, call_id)
            return grpc.stream_stream_rpc_method_handler(guarded, read, handler.response_serializer)

        async def behaviour(data: bytes, context: Any) -> Any:
            return await handler.unary_unary(read(data), context)

        # Read under the guard: gRPC itself would fail the call without its request id.
        return grpc.unary_unary_rpc_method_handler(_guarded(behaviour, call_id), None, handler.response_serializer)


def _reader(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise errors.InvalidRequest("the message cannot be read: it is none of this call's type") from None

    return read


def _guarded(behaviour: Callable[[Any, Any], Awaitable[Any]], call_id: str) -> Callable[[Any, Any], Awaitable[Any]]:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        request_id.set(call_id)
        try:
            response = await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            log_unforeseen(error, call_id)
            let_go(error)
            del request  # gRPC's error of an aborted call holds this frame in the same way
            await context.abort(code_of(error), details_of(error, call_id), _trailing(error))
        context.set_trailing_metadata(_trailing(None))
        return response

    return guarded
