"""The stream of images of one ClassifyStream."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import grpc

from pipeline import metrics
from pipeline.errors import Unavailable
from pipeline.request import Result
from server import logs
from server.admission import Admission, deadline_of
from server.images import Images, Sent
from warmlane.v1 import classifier_pb2 as pb

Context = grpc.aio.ServicerContext


class Stream:
    """The images of one ClassifyStream: a task reads them, the handler's own writes the answers, in the order in which
    they are ready.

    An image is under way until its answer has been written, so that a caller who never reads holds no more than the
    window. Whichever thread answers images wakes the writer once for all that it has answered since the writer looked.
    """

    def __init__(self, images: Images, admission: Admission, context: "Context[Any, Any]", window: int) -> None:
        self._images = images
        self._admission = admission
        self._context = context
        self._call_id = logs.request_id.get()
        self._deadline = deadline_of(context.time_remaining())
        self._window = asyncio.Semaphore(window)
        self._under_way: dict[Future[Result], Sent] = {}
        self._ready: deque[Future[Result]] = deque()
        self._news = asyncio.Event()
        self._waking = False
        self._loop = asyncio.get_running_loop()

    async def run(self, requests: AsyncIterator[pb.ClassifyStreamRequest]) -> None:
        """Read and answer until the caller has no more, or the server drains.

        Raises:
            Unavailable: the server drains; what had been read by then has been answered.
        """
        reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(self._wake)

        def stop_reading(_: object) -> None:
            reading.cancel()

        self._admission.draining.add_done_callback(stop_reading)
        try:
            await self._write(reading)
        except BaseException:
            self._abandon(reading)
            raise
        finally:
            self._admission.draining.remove_done_callback(stop_reading)
        if reading.cancelled():
            raise Unavailable("the server is draining: it reads no more of this stream")

    async def _read(self, requests: AsyncIterator[pb.ClassifyStreamRequest]) -> None:
        """Send each image on its way, as fast as the window and the slots allow."""
        number = 0
        async for message in requests:
            await self._window.acquire()
            slot = await self._admission.wait_for_slot(message.request.image)
            image_id = f"{self._call_id}/{number}"
            received_ns = time.monotonic_ns()
            sent = self._images.send(message.request, slot, received_ns, self._deadline, image_id, message.id)
            # The future keeps its callbacks: one that held `sent` would keep the image for the garbage collector.
            self._under_way[sent.request.future] = sent
            sent.request.future.add_done_callback(self._on_done)
            number += 1

    async def _write(self, reading: asyncio.Task[None]) -> None:
        while self._under_way or not reading.done():
            if reading.done() and not reading.cancelled():
                reading.result()
            while self._ready:
                await self._write_one(self._ready.popleft())
            if self._under_way or not reading.done():
                await self._news.wait()
                self._news.clear()
        if not reading.cancelled():
            reading.result()

    async def _write_one(self, future: Future[Result]) -> None:
        sent = self._under_way[future]
        answer = pb.ClassifyStreamResponse(id=sent.number)
        self._images.settle(answer.result, sent)
        await self._context.write(answer)
        del self._under_way[future]
        self._window.release()

    def _on_done(self, future: Future[Result]) -> None:
        """Called by the thread that answers."""
        self._ready.append(future)
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self, _: object = None) -> None:
        # Before the writer looks: whatever is ready after that wakes it again.
        self._waking = False
        self._news.set()

    def _abandon(self, reading: asyncio.Task[None]) -> None:
        """The caller has left."""
        self._waking = True  # there is nobody to wake any more, and in the end no loop
        reading.cancel()
        for future in list(self._under_way):
            future.cancel()
        metrics.OUTCOMES.labels("CANCELLED").inc(len(self._under_way))
