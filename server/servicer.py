"""Where an image enters and its answer leaves: admit, send down the pipeline, await, answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pipeline.backend import Backend
from pipeline.errors import InvalidRequest
from server import logs, messages
from server.admission import Admission, deadline_of
from server.images import Images, Sent, count_failed, finished
from server.settings import Settings
from server.stream import Stream
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierServicer

Context = grpc.aio.ServicerContext


class Servicer(ClassifierServicer):
    """The four calls of the contract. Errors are raised, and become statuses in `status.StatusInterceptor`."""

    def __init__(self, backend: Backend, admission: Admission, settings: Settings) -> None:
        self._backend = backend
        self._admission = admission
        self._settings = settings
        self._images = Images(backend, admission)

    async def Classify(self, request: pb.ClassifyRequest, context: "Context[Any, Any]") -> pb.ClassifyResponse:  # noqa: N802
        """One image, one answer."""
        received_ns = time.monotonic_ns()
        deadline = deadline_of(context.time_remaining())
        try:
            self._admission.open_call(context)
            self._images.check(request)
            self._admission.check_deadline(deadline)
            slot = self._admission.take_slots([request.image])[0]
        except Exception as error:
            count_failed(error)
            raise
        sent = self._images.send(request, slot, received_ns, deadline, logs.request_id.get())
        await finished(sent)
        response = pb.ClassifyResponse()
        self._images.fill(response, sent)
        return response

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
            count_failed(error, count)
            raise
        call_id = logs.request_id.get()
        sent = [
            self._images.send(item, slot, received_ns, deadline, f"{call_id}/{number}")
            for number, (item, slot) in enumerate(zip(request.requests, slots, strict=True))
        ]
        return pb.ClassifyBatchResponse(results=await asyncio.gather(*map(self._result, sent)))

    async def ClassifyStream(  # noqa: N802
        self, requests: AsyncIterator[pb.ClassifyStreamRequest], context: "Context[Any, Any]"
    ) -> None:
        """A stream of images, answered as they are ready."""
        self._admission.open_call(context)
        await Stream(self._images, self._admission, context, self._settings.stream_window).run(requests)

    async def GetModel(self, request: pb.GetModelRequest, context: "Context[Any, Any]") -> pb.Model:  # noqa: N802
        """What is served, and its limits."""
        self._admission.open_call(context)
        self._admission.check_model(request.model)
        return messages.model(self._backend.info, self._settings)

    async def _result(self, sent: Sent) -> pb.ClassifyResult:
        """Wait for one image of a batch."""
        await finished(sent)
        result = pb.ClassifyResult()
        self._images.settle(result, sent)
        return result
