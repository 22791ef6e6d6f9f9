"""Decode threads and engine in one process: what stands behind the gRPC servicer.

submit -> decode thread: header, decode, window into the slot -> batcher -> engine thread -> request.future
"""

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from pipeline.batcher import Batcher
from pipeline.canvas import place
from pipeline.decode import decode
from pipeline.engine import Engine
from pipeline.errors import PipelineError, Unavailable
from pipeline.headers import Limits, read_header
from pipeline.lanes import Options, build_lanes
from pipeline.model import Model
from pipeline.request import Decoding, Request
from pipeline.slots import SlotPool

log = logging.getLogger(__name__)


class Pipeline:
    """From encoded bytes to predictions, in this process.

    Args:
        model: what to serve.
        limits: what an image may have at most.
    """

    def __init__(self, model: Model, options: Options, limits: Limits) -> None:
        self.model = model
        self.options = options
        self.limits = limits
        self.canvas = options.canvas_for(model)
        self.slots = SlotPool(options.slots, self.canvas, pinned=options.on_gpu)
        self.engine = Engine(lambda: build_lanes(model, options), Batcher(options.batch_size, options.max_wait_ms))
        self._decoders = ThreadPoolExecutor(options.decode_threads, thread_name_prefix="decode")

    def start(self) -> Future[None]:
        """Start warming up; the future resolves once requests can be answered, or fails with what went wrong."""
        self.engine.start()
        return self.engine.ready

    def submit(self, request: Request) -> None:
        """Send an admitted request, whose slot has been taken, on its way. Its future tells the outcome."""
        try:
            self._decoders.submit(self._decode, request)
        except RuntimeError:
            # The executor has been shut down.
            request.abandon(Unavailable("the server has stopped"))

    def expected_wait_ms(self) -> int:
        """How long the images in flight will take, in milliseconds, at the pace of recent batches."""
        lanes = self.options.lanes if self.options.on_gpu else 1
        batches = self.slots.in_use / self.options.batch_size / lanes
        return round(1e3 * self.engine.seconds_per_batch * batches)

    def stop(self) -> None:
        """Answer what has been submitted, then end all threads."""
        self.engine.drain()
        self._decoders.shutdown()
        self.engine.stop()

    def _decode(self, request: Request) -> None:
        try:
            if not request.drop_if_dead("decode"):
                decode_into_slot(request, self.limits, self.model)
                self.engine.submit(request)
        except PipelineError as error:
            request.abandon(error)
        except Exception as error:
            log.exception("decoding failed in a way that no image should cause")
            request.abandon(error)


def decode_into_slot(request: Request, limits: Limits, model: Model) -> None:
    """Header check, decode, and the crop's window into the request's slot.

    Raises:
        BadImage: the bytes cannot be classified.
    """
    assert request.slot is not None
    request.stamps.decode_start = time.monotonic_ns()
    header = read_header(request.image, limits)
    decoded = decode(request.image, header)
    request.geometry = place(decoded.pixels, header.orientation, model.preprocess, request.slot.pixels)
    request.decoding = Decoding(header, decoded.conversions, decoded.decoder)
    request.image = b""
