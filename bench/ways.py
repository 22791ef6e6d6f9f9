"""Ways to call a service as fast as Python can: encoded requests, no client in between. For `bench.generator`."""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from bench.summary import sample_row
from warmlane.base import CHANNEL_OPTIONS
from warmlane.v1 import classifier_pb2 as pb

Row = tuple[float, ...]

_SERVICE = pb.DESCRIPTOR.services_by_name["Classifier"].full_name
_PAUSE_S = 0.01
_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when answers count, in seconds of CLOCK_MONOTONIC; without an end where calls are counted."""

    open_s: float
    stop_s: float

    def left_s(self) -> float | None:
        """Seconds until it closes; None if it does not."""
        return None if math.isinf(self.stop_s) else max(0.0, self.stop_s - time.monotonic())


class Calls:
    """The calls of one process, closed loop.

    Args:
        callers: images under way at all times.
        connections: that they are spread over; in `stream`, each carries one stream.
        rows: takes the answers that come in the window; see `summary.sample_row`.
        errors: takes the others, by gRPC status.
    """

    def __init__(
        self,
        target: str,
        files: Sequence[bytes],
        callers: int,
        connections: int,
        window: Window,
        rows: list[Row],
        errors: Counter[str],
    ) -> None:
        self._rows = rows
        self._errors = errors
        self._target = target
        self._files = files
        self._callers = callers
        self._connections = min(connections, callers)
        self._window = window

    async def run(self, way: str) -> None:
        """Call in a way, "unary" or "stream", until the window closes."""
        each: Callable[[grpc.aio.Channel, int], Awaitable[None]] = {"unary": self._unary, "stream": self._stream}[way]
        share, more = divmod(self._callers, self._connections)
        channels = [grpc.aio.insecure_channel(self._target, CHANNEL_OPTIONS) for _ in range(self._connections)]
        await asyncio.gather(*(each(channel, share + (n < more)) for n, channel in enumerate(channels)))
        await asyncio.gather(*(channel.close(None) for channel in channels))

    async def _unary(self, channel: grpc.aio.Channel, callers: int) -> None:
        requests = itertools.cycle([pb.ClassifyRequest(image=file).SerializeToString() for file in self._files])
        call: Callable[[bytes], Any] = channel.unary_unary(f"/{_SERVICE}/Classify", None, None)

        async def caller() -> None:
            while (sent_s := time.monotonic()) < self._window.stop_s:
                try:
                    answer = pb.ClassifyResponse.FromString(await call(next(requests)))
                except grpc.aio.AioRpcError as error:
                    self._errors[error.code().name] += 1
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._note(sent_s, answer)

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def _stream(self, channel: grpc.aio.Channel, callers: int) -> None:
        room = asyncio.Semaphore(callers)
        sent: dict[int, float] = {}

        async def requests() -> AsyncIterator[bytes]:
            for number, message in enumerate(_stream_messages(self._files)):
                await room.acquire()
                sent[number] = time.monotonic()
                if sent[number] >= self._window.stop_s:
                    return
                message.id = number
                yield message.SerializeToString()

        stream = channel.stream_stream(f"/{_SERVICE}/ClassifyStream", None, None)
        try:
            async for data in stream(requests()):
                answer = pb.ClassifyStreamResponse.FromString(data)
                room.release()
                if answer.result.HasField("error"):
                    self._errors[_NAMES[answer.result.error.code]] += 1
                else:
                    self._note(sent.pop(answer.id), answer.result.response)
        except grpc.aio.AioRpcError as error:
            self._errors[error.code().name] += 1

    def _note(self, sent_s: float, answer: pb.ClassifyResponse) -> None:
        answered_s = time.monotonic()
        if not answer.predictions:
            self._errors["no predictions"] += 1
        if self._window.open_s <= answered_s <= self._window.stop_s:
            self._rows.append(sample_row(1e3 * (answered_s - sent_s), answer.timings))


def _stream_messages(files: Sequence[bytes]) -> Iterator[pb.ClassifyStreamRequest]:
    return itertools.cycle([pb.ClassifyStreamRequest(request=pb.ClassifyRequest(image=file)) for file in files])
