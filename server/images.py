"""One image of a call: sent down the pipeline, and its answer written."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from pipeline import metrics
from pipeline.backend import Backend
from pipeline.errors import PipelineError
from pipeline.request import Request
from pipeline.slots import Slot
from server import messages, status
from server.admission import Admission, checked_top_k
from warmlane.v1 import classifier_pb2 as pb

# Of an answer's timings, in the order of `metrics.STAGES`.
stages_ms: Callable[[pb.Timings], tuple[float, ...]] = attrgetter(*(f"{stage}_ms" for stage in metrics.STAGES))


@dataclass(slots=True, eq=False)
class Sent:
    """An image on its way and what its caller asked for, without the message: that holds the encoded image.

    Attributes:
        number: in a stream, what its caller calls it.
    """

    request: Request
    top_k: int
    explain: bool
    image_id: str
    number: int = 0


class Images:
    """What the calls of the contract have in common."""

    def __init__(self, backend: Backend, admission: Admission) -> None:
        self._backend = backend
        self._admission = admission

    def check(self, message: pb.ClassifyRequest) -> None:
        """Raise what is wrong with the message itself: `InvalidRequest` or `UnknownModel`."""
        checked_top_k(message.top_k)
        self._admission.check_model(message.model)

    def send(
        self,
        message: pb.ClassifyRequest,
        slot: Slot,
        received_ns: int,
        deadline: float,
        image_id: str,
        number: int = 0,
    ) -> Sent:
        """Send one image down the pipeline, or fail its future with what is wrong with the message.

        The slot is the pipeline's from here on. No await lies between taking a slot and this: a call that is cancelled
        there would keep its slots.
        """
        request = Request(message.image, message.model, slot, deadline)
        request.stamps.received = received_ns
        try:
            self.check(message)
        except PipelineError as error:
            request.abandon(error)
        else:
            self._backend.submit(request)
        return Sent(request, message.top_k, message.explain, image_id, number)

    def settle(self, result: pb.ClassifyResult, sent: Sent) -> None:
        """As `fill`, with the error of this image as a value."""
        try:
            self.fill(result.response, sent)
        except Exception as error:
            # Every image is answered by itself: whatever befalls this one must not reach its neighbours.
            status.log_unforeseen(error, sent.image_id)
            status.let_go(error)
            result.error.CopyFrom(status.as_status(error, sent.image_id))

    def fill(self, response: pb.ClassifyResponse, sent: Sent) -> None:
        """Write the answer of an image that has been through the pipeline, or raise its error; counts the outcome."""
        info = self._backend.info
        try:
            result = sent.request.future.result()
            top_k = checked_top_k(sent.top_k)
            messages.fill(response, sent.request, result, top_k, explain=sent.explain, labels=info.labels)
        except Exception as error:
            count_failed(error)
            raise
        response.model, response.model_version, response.request_id = info.name, info.version, sent.image_id
        metrics.count_answer(stages_ms(response.timings))


async def finished(sent: Sent) -> None:
    """Wait until an image has been through the pipeline, whatever became of it; if cancelled, give it up."""
    try:
        await asyncio.wrap_future(sent.request.future)
    except asyncio.CancelledError:
        metrics.OUTCOMES.labels("CANCELLED").inc()
        raise
    except Exception:
        pass  # for `fill` to find


def count_failed(error: Exception, images: int = 1) -> None:
    """Count the outcome of images that fail."""
    metrics.OUTCOMES.labels(status.code_of(error).name).inc(images)
