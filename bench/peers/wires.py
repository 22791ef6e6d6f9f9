"""How a service is called: requests are encoded beforehand, and of an answer only its best class is read."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import aiohttp
import grpc

from bench.open_loop import METHOD as CLASSIFY
from bench.peers import kserve
from bench.ways import close_channels, open_channels
from warmlane.v1 import classifier_pb2 as pb

_TIMEOUT_S = 60.0
_MOST_CHANNELS = 16
_BOUNDARY = "warmlane-bench-peers"


class CallError(Exception):
    """A call without an answer; the message is its status, in a word or two."""


@dataclass(frozen=True, slots=True)
class Wire:
    """A service's address and what it speaks.

    Attributes:
        speaks: "http" with the JPEG as the body, "multipart" with the JPEG as a form's file, "warmlane" or "kserve".
        path: of the URL for HTTP, the model's name for KServe.
        port: on the loopback address.
        own_ports: calls take turns between so many ports instead, the first of which is `port` + 1.
    """

    speaks: str
    path: str = "/"
    port: int = 0
    own_ports: int = 0

    @property
    def target(self) -> str:
        """ "host:port", or several."""
        if self.own_ports:
            first = self.port + 1
            return "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in range(first, first + self.own_ports))
        return f"127.0.0.1:{self.port}"


class Line(Protocol):
    """Open connections to a service; used in an `async with` block."""

    def encode(self, file: bytes) -> bytes:
        """The request with this image."""

    async def call(self, request: bytes) -> int:
        """The best class.

        Raises:
            CallError: there is no answer.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def open_line(wire: Wire, callers: int) -> Line:
    """Connections for so many callers at a time."""
    if wire.speaks in _GRPC:
        return _Grpc(wire, callers)
    return _Http(wire)


class _Http:
    """A connection for each caller."""

    def __init__(self, wire: Wire) -> None:
        self._url = f"http://{wire.target}{wire.path}"
        self._multipart = wire.speaks == "multipart"
        kind = f"multipart/form-data; boundary={_BOUNDARY}" if self._multipart else "image/jpeg"
        self._headers = {"Content-Type": kind}

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def encode(self, file: bytes) -> bytes:
        """See `Line`."""
        return _form(file) if self._multipart else file

    async def call(self, request: bytes) -> int:
        """See `Line`."""
        try:
            async with self._session.post(self._url, data=request, headers=self._headers) as response:
                body = await response.read()
                if response.status != 200:
                    raise CallError(f"HTTP {response.status}")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CallError(type(error).__name__) from None
        return _best(json.loads(body))


class _Grpc:
    """Several connections, taken in turns."""

    def __init__(self, wire: Wire, callers: int) -> None:
        self._method, self._encode, self._top1 = _GRPC[wire.speaks]
        self._wire = wire
        self._count = min(callers, _MOST_CHANNELS)

    async def __aenter__(self) -> Self:
        self._channels = open_channels(self._wire.target, self._count)
        self._calls = itertools.cycle([channel.unary_unary(self._method, None, None) for channel in self._channels])
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_channels(self._channels)

    def encode(self, file: bytes) -> bytes:
        """See `Line`."""
        return self._encode(self._wire.path, file)

    async def call(self, request: bytes) -> int:
        """See `Line`."""
        try:
            return self._top1(await next(self._calls)(request, timeout=_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            raise CallError(error.code().name) from None


def _form(file: bytes) -> bytes:
    """A form with one file, named as `bench.peers.serve.with_bentoml` names it."""
    head = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="image.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    )
    return head.encode() + file + f"\r\n--{_BOUNDARY}--\r\n".encode()


def _best(answer: Any) -> int:
    """Of `bench.peers.classifier.Answer` as JSON, alone or in a list of one."""
    one = answer[0] if isinstance(answer, list) else answer
    return int(one["indices"][0])


def _classify(path: str, file: bytes) -> bytes:
    return pb.ClassifyRequest(image=file).SerializeToString()


def _classified(response: bytes) -> int:
    return pb.ClassifyResponse.FromString(response).predictions[0].index


_GRPC: dict[str, tuple[str, Callable[[str, bytes], bytes], Callable[[bytes], int]]] = {
    "warmlane": (CLASSIFY, _classify, _classified),
    "kserve": (kserve.METHOD, kserve.request, kserve.top1),
}
