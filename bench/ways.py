"""Ways to call a service as fast as Python can: encoded requests, no client in between. For `bench.generator`."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc

from bench.tally import Tally
from warmlane.base import CHANNEL_OPTIONS
from warmlane.v1 import classifier_pb2 as pb

# Its number in the set, and its bytes.
File = tuple[int, bytes]

_SERVICE = pb.DESCRIPTOR.services_by_name["Classifier"].full_name
_PAUSE_S = 0.01
_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


class Calls:
    """The calls of one process, closed loop.

    Args:
        callers: images under way at all times; in `batch`, calls.
        connections: that they are spread over; in `stream`, each carries one stream. See `open_channels`.
        tally: takes what becomes of them.
        images: of each call, in `batch`.
    """

    def __init__(
        self, target: str, files: Sequence[File], callers: int, connections: int, tally: Tally, images: int = 1
    ) -> None:
        self._target = target
        self._files = files
        self._callers = callers
        self._connections = min(connections, callers)
        self._tally = tally
        self._stop_s = tally.window.stop_s
        self._images = images

    async def run(self, way: str) -> None:
        """Call in a way, "unary", "batch" or "stream", until the window closes."""
        ways: dict[str, Callable[[grpc.aio.Channel, int], Awaitable[None]]]
        ways = {"unary": self._unary, "batch": self._batches, "stream": self._stream}
        share, more = divmod(self._callers, self._connections)
        channels = open_channels(self._target, self._connections)
        await asyncio.gather(*(ways[way](channel, share + (n < more)) for n, channel in enumerate(channels)))
        await close_channels(channels)

    async def _unary(self, channel: grpc.aio.Channel, callers: int) -> None:
        requests = itertools.cycle(encoded(self._files))
        call = unary_call(channel)

        async def caller() -> None:
            while (sent_s := time.monotonic()) < self._stop_s:
                file, request = next(requests)
                try:
                    answer = pb.ClassifyResponse.FromString(await call(request))
                except grpc.aio.AioRpcError as error:
                    self._tally.failed(error.code().name)
                    await asyncio.sleep(_PAUSE_S)
                else:
                    self._tally.answered(file, sent_s, answer)

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def _batches(self, channel: grpc.aio.Channel, callers: int) -> None:
        feed = itertools.cycle(self._files)
        call: Callable[[bytes], Any] = channel.unary_unary(f"/{_SERVICE}/ClassifyBatch", None, None)

        async def caller() -> None:
            while (sent_s := time.monotonic()) < self._stop_s:
                numbers, images = zip(*itertools.islice(feed, self._images), strict=True)
                message = pb.ClassifyBatchRequest(requests=[pb.ClassifyRequest(image=image) for image in images])
                try:
                    answer = pb.ClassifyBatchResponse.FromString(await call(message.SerializeToString()))
                except grpc.aio.AioRpcError as error:
                    self._tally.failed(error.code().name, len(images))
                    await asyncio.sleep(_PAUSE_S)
                else:
                    for number, result in zip(numbers, answer.results, strict=True):
                        self._settle(number, sent_s, result)

        await asyncio.gather(*(caller() for _ in range(callers)))

    async def _stream(self, channel: grpc.aio.Channel, callers: int) -> None:
        room = asyncio.Semaphore(callers)
        sent: dict[int, tuple[int, float]] = {}

        async def requests() -> AsyncIterator[bytes]:
            for number, (file, message) in enumerate(_stream_messages(self._files)):
                await room.acquire()
                now_s = time.monotonic()
                if now_s >= self._stop_s:
                    return
                sent[number] = file, now_s
                message.id = number
                yield message.SerializeToString()

        stream = channel.stream_stream(f"/{_SERVICE}/ClassifyStream", None, None)
        try:
            async for data in stream(requests()):
                answer = pb.ClassifyStreamResponse.FromString(data)
                room.release()
                self._settle(*sent.pop(answer.id), answer.result)
        except grpc.aio.AioRpcError as error:
            self._tally.failed(error.code().name)

    def _settle(self, file: int, sent_s: float, result: pb.ClassifyResult) -> None:
        """One image of a batch or stream."""
        if result.HasField("error"):
            self._tally.failed(_NAMES[result.error.code])
        else:
            self._tally.answered(file, sent_s, result.response)


def open_channels(target: str, connections: int) -> list[grpc.aio.Channel]:
    """So many, which are being connected.

    A target of several addresses has one channel, so many times: it takes turns between them, where several channels
    would each begin with one by chance.
    """
    if "," in target:
        return [grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)] * connections
    return [grpc.aio.insecure_channel(target, CHANNEL_OPTIONS) for _ in range(connections)]


async def close_channels(channels: Sequence[grpc.aio.Channel]) -> None:
    """All of them, without waiting for calls."""
    await asyncio.gather(*(channel.close(None) for channel in channels))


def unary_call(channel: grpc.aio.Channel) -> Callable[..., Any]:
    """Classify, on messages that are encoded already."""
    call: Callable[..., Any] = channel.unary_unary(f"/{_SERVICE}/Classify", None, None)
    return call


def encoded(files: Sequence[File]) -> list[File]:
    """Each file as a message."""
    return [(number, pb.ClassifyRequest(image=image).SerializeToString()) for number, image in files]


def _stream_messages(files: Sequence[File]) -> Iterator[tuple[int, pb.ClassifyStreamRequest]]:
    requests = [(number, pb.ClassifyRequest(image=image)) for number, image in files]
    return itertools.cycle([(number, pb.ClassifyStreamRequest(request=request)) for number, request in requests])
