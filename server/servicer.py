"""Where an image enters and its answer leaves: admit, send down the pipeline, await, answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import grpc

from pipeline import metrics
from pipeline.backend import Backend
from pipeline.errors import InvalidRequest, PipelineError, Unavailable
from pipeline.request import Request
from pipeline.slots import Slot
from server import logs, messages, status
from server.admission import Admission, checked_top_k, deadline_of
from server.settings import Settings
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierServicer

Context = grpc.aio.ServicerContext

# Of an answer's timings, in the order of `metrics.STAGES`.
stages_ms: Callable[[pb.Timings], tuple[float, ...]] = attrgetter(*(f"{stage}_ms" for stage in metrics.STAGES))


@dataclass(frozen=True, slots=True)
class _Sent:
    """An image on its way and what its caller asked for, without the message: that holds the encoded image."""

    request: Request
    top_k: int
    explain: bool
    image_id: str


class Servicer(ClassifierServicer):
    """The four calls of the contract. Errors are raised, and become statuses in `status.StatusInterceptor`."""

    def __init__(self, backend: Backend, admission: Admission, settings: Settings) -> None:
        self._backend = backend
        self._admission = admission
        self._settings = settings

    async def Classify(self, request: pb.ClassifyRequest, context: "Context[Any, Any]") -> pb.ClassifyResponse:  # noqa: N802
        """One image, one answer."""
        received_ns = time.monotonic_ns()
        deadline = deadline_of(context.time_remaining())
        try:
            self._admission.open_call(context)
            self._check(request)
            self._admission.check_deadline(deadline)
            slot = self._admission.take_slots([request.image])[0]
        except Exception as error:
            _count_failed(error)
            raise
        return await _counted(self._answer(self._send(request, slot, received_ns, deadline, logs.request_id.get())))

    async def ClassifyBatch(  # noqa: N802
        self, request: pb.ClassifyBatchRequest, context: "Context[Any, Any]"
    ) -> pb.ClassifyBatchResponse:
        """Several images, each answered by itself."""
        received_ns = time.monotonic_ns()
        deadline = deadline_of(context.time_remaining())
        count = len(request.requests)
        try:
            self._admission.open_call(context)
            if not 1 <= count <= self._settings.max_batch_images:
                most = self._settings.max_batch_images
                raise InvalidRequest(f"the batch has {count} images; 1 to {most} are taken (--max-batch-images)")
            self._admission.check_deadline(deadline)
            slots = self._admission.take_slots([item.image for item in request.requests])
        except Exception as error:
            _count_failed(error, count)
            raise
        call_id = logs.request_id.get()
        sent = [
            self._send(item, slot, received_ns, deadline, f"{call_id}/{number}")
            for number, (item, slot) in enumerate(zip(request.requests, slots, strict=True))
        ]
        return pb.ClassifyBatchResponse(results=await asyncio.gather(*map(self._result, sent)))

    async def ClassifyStream(  # noqa: N802
        self, requests: AsyncIterator[pb.ClassifyStreamRequest], context: "Context[Any, Any]"
    ) -> None:
        """A stream of images, answered as they are ready."""
        self._admission.open_call(context)
        stream = _Stream(self, context, self._settings.stream_window)
        reading = asyncio.create_task(stream.read(requests, self._admission))
        try:
            await asyncio.wait({reading, self._admission.draining}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await stream.finish(reading)
        except BaseException:
            stream.cancel(reading)
            raise
        if self._admission.draining.done():
            raise Unavailable("the server is draining: it reads no more of this stream")

    async def GetModel(self, request: pb.GetModelRequest, context: "Context[Any, Any]") -> pb.Model:  # noqa: N802
        """What is served, and its limits."""
        self._admission.open_call(context)
        self._admission.check_model(request.model)
        return messages.model(self._backend.info, self._settings)

    def _check(self, message: pb.ClassifyRequest) -> None:
        checked_top_k(message.top_k)
        self._admission.check_model(message.model)

    def _send(self, message: pb.ClassifyRequest, slot: Slot, received_ns: int, deadline: float, image_id: str) -> _Sent:
        """Send one image down the pipeline, or fail its future with what is wrong with the message.

        The slot is the pipeline's from here on. No await lies between taking a slot and this: a call that is cancelled
        there would keep its slots.
        """
        request = Request(message.image, message.model, slot, deadline)
        request.stamps.received = received_ns
        try:
            self._check(message)
        except PipelineError as error:
            request.abandon(error)
        else:
            self._backend.submit(request)
        return _Sent(request, message.top_k, message.explain, image_id)

    async def _answer(self, sent: _Sent) -> pb.ClassifyResponse:
        """Wait for the answer of one image."""
        result = await asyncio.wrap_future(sent.request.future)
        info = self._backend.info
        answer = messages.response(
            sent.request, result, checked_top_k(sent.top_k), explain=sent.explain, labels=info.labels
        )
        answer.model, answer.model_version, answer.request_id = info.name, info.version, sent.image_id
        return answer

    async def _result(self, sent: _Sent) -> pb.ClassifyResult:
        """As `_answer`, with the error of this image as a value."""
        try:
            return pb.ClassifyResult(response=await _counted(self._answer(sent)))
        except Exception as error:
            # Every image is answered by itself: whatever befalls this one must not reach its neighbours.
            status.log_unforeseen(error, sent.image_id)
            status.let_go(error)
            return pb.ClassifyResult(error=status.as_status(error, sent.image_id))


class _Stream:
    """The images of one ClassifyStream. The window is given back when an answer has been written, so that a caller who
    never reads holds no more than the window."""

    def __init__(self, servicer: Servicer, context: "Context[Any, Any]", window: int) -> None:
        self._servicer = servicer
        self._context = context
        self._window = asyncio.Semaphore(window)
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._call_id = logs.request_id.get()

    async def read(self, requests: AsyncIterator[pb.ClassifyStreamRequest], admission: Admission) -> None:
        """Start a task for each message, as fast as the window and the slots allow."""
        number = 0
        async for message in requests:
            await self._window.acquire()
            slot = await admission.wait_for_slot(message.request.image)
            deadline = deadline_of(self._context.time_remaining())
            image_id = f"{self._call_id}/{number}"
            sent = self._servicer._send(message.request, slot, time.monotonic_ns(), deadline, image_id)
            task = asyncio.create_task(self._answer(message.id, sent))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            number += 1

    async def finish(self, reading: asyncio.Task[None]) -> None:
        """Read no more, and answer what has been read."""
        reading.cancel()
        await asyncio.wait({reading})
        if self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self, reading: asyncio.Task[None]) -> None:
        """The caller has left."""
        for task in (reading, *self._tasks):
            task.cancel()

    async def _answer(self, number: int, sent: _Sent) -> None:
        result = await self._servicer._result(sent)
        async with self._writing:
            await self._context.write(pb.ClassifyStreamResponse(id=number, result=result))
        self._window.release()


def _count_failed(error: Exception, images: int = 1) -> None:
    metrics.OUTCOMES.labels(status.code_of(error).name).inc(images)


async def _counted(answer: Awaitable[pb.ClassifyResponse]) -> pb.ClassifyResponse:
    """Count the outcome of one image by its status."""
    try:
        response = await answer
    except asyncio.CancelledError:
        metrics.OUTCOMES.labels("CANCELLED").inc()
        raise
    except Exception as error:
        _count_failed(error)
        raise
    metrics.count_answer(stages_ms(response.timings))
    return response
