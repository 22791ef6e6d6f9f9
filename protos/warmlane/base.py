"""What both clients share: settings, requests, and when to try again. Nothing in here waits or talks to a server."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from warmlane.errors import REQUEST_ID_KEY, Overloaded, from_rpc_error
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1 import classifier_pb2_grpc as pb_grpc

Image = bytes | str | os.PathLike[str]
ChannelT = TypeVar("ChannelT", grpc.Channel, grpc.aio.Channel)

DEFAULT_TARGET = "localhost:50051"
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_REQUEST_ID_CHARS = 128
# The most that a call may take, and a stream that may last: gRPC takes no infinity, and fails at once with one.
NO_LIMIT_S = 10 * 365 * 86400.0

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Without it channels to one target share one connection, and a server balances connections, not calls.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.lb_policy_name", "round_robin"),
    # Calls that the server answered or may have seen are sent again by `Call.pause_s` alone: no policy that comes with
    # the target's address is taken. What gRPC knows to have reached no server, as an old connection was just being
    # closed (GOAWAY), it sends again by itself. "grpc.enable_retries" off would make such calls fail.
    ("grpc.service_config_disable_resolution", 1),
]


class BaseClient(Generic[ChannelT]):
    """Settings and request building of `Client` and `AsyncClient`.

    Args:
        target: "host:port", or any other gRPC target.
        timeout_s: seconds that a call may take, retries included, where it does not say otherwise.
        connections: channels to open, each a connection of its own to every address of the target; calls take turns.
            Several spread the load over the processes of one server, which balances connections.
        model: name of the model to ask; empty means the server's default.
        max_attempts: how often a call is sent at most; again only if the server is full and says when to come back.
        credentials: for TLS; None means an unencrypted connection.

    Raises:
        ValueError: for an empty target, or a number that is not positive.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout_s: float = 30.0,
        connections: int = 1,
        model: str = "",
        max_attempts: int = 3,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        if not target:
            raise ValueError("target is empty: give host:port")
        check_positive(timeout_s=timeout_s, connections=connections, max_attempts=max_attempts)
        self.target = target
        self._timeout_s = timeout_s
        self._model = model
        self._max_attempts = max_attempts
        self._channels: list[ChannelT] = [self._open_channel(credentials) for _ in range(connections)]
        self._stubs = itertools.cycle([pb_grpc.ClassifierStub(channel) for channel in self._channels])
        self._health_stub = health_pb2_grpc.HealthStub(self._channels[0])

    def _open_channel(self, credentials: grpc.ChannelCredentials | None) -> ChannelT:
        raise NotImplementedError

    def _next_stub(self) -> pb_grpc.ClassifierStub:
        return next(self._stubs)

    def _call(self, request_id: str | None, timeout_s: float | None) -> Call:
        return Call(request_id, self._timeout_s if timeout_s is None else timeout_s, self._max_attempts)

    def _stream_call(self, request_id: str | None, timeout_s: float | None) -> Call:
        return Call(request_id, NO_LIMIT_S if timeout_s is None else timeout_s)

    def _request(self, image: bytes, top_k: int, explain: bool) -> pb.ClassifyRequest:
        return checked(pb.ClassifyRequest(image=image, top_k=top_k, explain=explain, model=self._model))

    def _batch_request(self, images: Iterable[bytes], top_k: int, explain: bool) -> pb.ClassifyBatchRequest:
        requests = [self._request(image, top_k, explain) for image in images]
        return checked(pb.ClassifyBatchRequest(requests=requests))

    def _stream_request(self, index: int, image: bytes, top_k: int, explain: bool) -> pb.ClassifyStreamRequest:
        return checked(pb.ClassifyStreamRequest(id=index, request=self._request(image, top_k, explain)))


class Call:
    """One call: the id it carries, the time it has, and whether to send it again."""

    def __init__(self, request_id: str | None, timeout_s: float, max_attempts: int = 1) -> None:
        check_positive(timeout_s=timeout_s)
        # Made here if need be: a deadline that passes here leaves no other trace of the call in the server's log.
        self.request_id = uuid.uuid4().hex if request_id is None else check_request_id(request_id)
        self.metadata = ((REQUEST_ID_KEY, self.request_id),)
        self._deadline_s = time.monotonic() + min(timeout_s, NO_LIMIT_S)
        self._attempts_left = max_attempts

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._deadline_s - time.monotonic())

    def pause_s(self, failure: grpc.RpcError) -> float:
        """Seconds to wait before sending the call again; raises the WarmlaneError of `failure` if it is not to be."""
        error = from_rpc_error(failure, self.request_id)
        self._attempts_left -= 1
        if not isinstance(error, Overloaded) or error.retry_after_ms is None or not self._attempts_left:
            raise error from failure
        pause_s = error.retry_after_ms / 1000
        if pause_s >= self.remaining_s():
            raise error from failure
        return pause_s


def read_image(image: Image) -> bytes:
    """The bytes of an image given as bytes or as a path; OSError if it cannot be read."""
    if isinstance(image, bytes):
        return image
    with open(os.fspath(image), "rb") as file:
        return file.read()


def check_images(images: object) -> None:
    """Iterating one image would give numbers or letters: TypeError."""
    if isinstance(images, (bytes, str)):
        raise TypeError("expected several images, got one: put it into a list")


def check_positive(**numbers: float) -> None:
    """ValueError, naming the argument, for a number that is not positive."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be positive, got {number}")


def check_request_id(request_id: str) -> str:
    """The id, or ValueError for one that does not fit into metadata."""
    if request_id.isascii() and request_id.isprintable() and 0 < len(request_id) <= MAX_REQUEST_ID_CHARS:
        return request_id
    raise ValueError(f"request_id must be 1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters, got {request_id!r}")


MessageT = TypeVar("MessageT", bound=Message)


def checked(message: MessageT) -> MessageT:
    """The message, or ValueError for one too large: gRPC would say RESOURCE_EXHAUSTED, as if the server was full."""
    size_bytes = message.ByteSize()
    if size_bytes > MAX_MESSAGE_BYTES:
        raise ValueError(f"{size_bytes} bytes do not fit into one message, which takes {MAX_MESSAGE_BYTES}")
    return message


def health_name(response: health_pb2.HealthCheckResponse) -> str:
    """The status's name, for example "SERVING"."""
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return name
