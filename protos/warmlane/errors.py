"""What a call can fail with.

    WarmlaneError              any other status, for example UNIMPLEMENTED
    ├── InvalidArgument        INVALID_ARGUMENT: not an image, damaged, over a limit, a bad `top_k`
    ├── ModelNotFound          NOT_FOUND: the server has no model of that name
    ├── Overloaded             RESOURCE_EXHAUSTED: the server is full; `retry_after_ms` says when to come back
    ├── DeadlineExceeded       DEADLINE_EXCEEDED: no answer within `timeout_s`
    ├── Unavailable            UNAVAILABLE: the server is starting, draining, or its engine is down
    │   └── Unreachable        no server answered: nothing listens there, or the connection broke
    ├── Cancelled              CANCELLED: the client was closed, or the server gave the call up
    └── InternalError          INTERNAL, UNKNOWN, DATA_LOSS: a bug; the server's log has the trace under `request_id`

Wrong use of the client itself (a negative timeout, a path that is not there) raises ValueError, TypeError or OSError,
before anything is sent.
"""

from __future__ import annotations

from typing import Any, cast

import grpc
from google.rpc import error_details_pb2, status_pb2

REQUEST_ID_KEY = "x-request-id"
PUSHBACK_KEY = "grpc-retry-pushback-ms"


class WarmlaneError(Exception):
    """A call, or one image of a batch or stream, failed.

    Attributes:
        code: the gRPC status.
        details: what the server said.
        request_id: the id under which the server's log knows the call; for one image of a batch or stream the
            image's own id where the server gives it, else the call's.
    """

    def __init__(self, code: grpc.StatusCode, details: str, request_id: str = "") -> None:
        super().__init__(code, details, request_id)
        self.code = code
        self.details = details
        self.request_id = request_id

    def __str__(self) -> str:
        text = f"{self.code.name}: {self.details}"
        if self.request_id and self.request_id not in self.details:
            text += f" (request id {self.request_id})"
        return text


class InvalidArgument(WarmlaneError):
    """The request cannot be answered, now or later: not an image, damaged, over a limit, a bad `top_k`."""


class ModelNotFound(WarmlaneError):
    """The server has no model of that name."""


class Overloaded(WarmlaneError):
    """The server is full.

    Attributes:
        retry_after_ms: when to come back, in milliseconds; None means that the server asks for no retry.
    """

    def __init__(
        self, code: grpc.StatusCode, details: str, request_id: str = "", retry_after_ms: int | None = None
    ) -> None:
        super().__init__(code, details, request_id)
        self.args = (code, details, request_id, retry_after_ms)
        self.retry_after_ms = retry_after_ms


class DeadlineExceeded(WarmlaneError):
    """No answer within the call's `timeout_s`, retries included, or the server saw that it could not be met."""


class Unavailable(WarmlaneError):
    """The server is starting, draining, or its engine is down."""


class Unreachable(Unavailable):
    """No server answered: nothing listens at the target, or the connection broke before an answer."""


class Cancelled(WarmlaneError):
    """The client was closed during the call, or the server gave the call up."""


class InternalError(WarmlaneError):
    """A bug in the server; its log has the trace under `request_id`."""


ERRORS: dict[grpc.StatusCode, type[WarmlaneError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNKNOWN: InternalError,
    grpc.StatusCode.DATA_LOSS: InternalError,
}
CODES = {code.value[0]: code for code in grpc.StatusCode}


def from_rpc_error(error: grpc.RpcError, request_id: str = "") -> WarmlaneError:
    """The exception for a failed call of grpc or grpc.aio; `request_id` is what was sent, if none came back."""
    # iter(): dict() alone takes aio.Metadata for a mapping, which it is not quite.
    trailing: dict[str, str] = dict(iter(cast(Any, error).trailing_metadata() or ()))
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and REQUEST_ID_KEY not in trailing:
        return Unreachable(code, details, request_id)
    return _build(code, details, trailing.get(REQUEST_ID_KEY, request_id), _pushback_ms(trailing.get(PUSHBACK_KEY)))


def from_status(status: status_pb2.Status, request_id: str = "") -> WarmlaneError:
    """The exception for one image of a batch or stream.

    `google.rpc.RequestInfo` and `RetryInfo` among the status's details give the image's own id and the time to wait;
    without them these are `request_id` (the call's) and None.
    """
    info, retry = error_details_pb2.RequestInfo(request_id=request_id), error_details_pb2.RetryInfo()
    for detail in status.details:
        detail.Unpack(info) or detail.Unpack(retry)
    retry_after_ms = retry.retry_delay.ToMilliseconds() if retry.HasField("retry_delay") else None
    code = CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return _build(code, status.message, info.request_id, retry_after_ms)


def _build(code: grpc.StatusCode, details: str, request_id: str, retry_after_ms: int | None) -> WarmlaneError:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return Overloaded(code, details, request_id, retry_after_ms)
    return ERRORS.get(code, WarmlaneError)(code, details, request_id)


def _pushback_ms(value: str | None) -> int | None:
    """A negative number, and anything that is not a number, means: do not retry (gRFC A6)."""
    try:
        pushback_ms = int(value or "")
    except ValueError:
        return None
    return pushback_ms if pushback_ms >= 0 else None
