"""Decode threads and engine in one process: what stands behind the gRPC servicer.

submit -> decode thread: header, decode, window into the slot -> batcher -> engine thread -> request.future
"""

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.batcher import Batcher
from pipeline.canvas import place
from pipeline.decode import decode
from pipeline.engine import Engine, Warm
from pipeline.errors import PipelineError
from pipeline.graph import Graph, Program, build_program, example_inputs
from pipeline.headers import Limits, read_header
from pipeline.lane import CpuLane
from pipeline.model import Model
from pipeline.request import Decoding, Request
from pipeline.slots import SlotPool

log = logging.getLogger(__name__)

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline runs its model.

    Attributes:
        batch_size: most images in a forward.
        canvas: side of a slot's canvas in pixels; 0 for the model's input size.
        slots: most images in flight.
        max_wait_ms: how long a batch may wait to fill, in milliseconds.
        threads: of the forward.
        decode_threads: images decoded at a time.
        compile: False serves eager.
        compile_cache: folder of compiled models; None keeps none.
    """

    batch_size: int
    canvas: int
    slots: int
    threads: int
    decode_threads: int
    max_wait_ms: float = 0.0
    compile: bool = True
    compile_cache: Path | None = None


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
        self.canvas = options.canvas or max(model.preprocess.crop)
        self.slots = SlotPool(options.slots, self.canvas)
        self.engine = Engine(self._warm_up, Batcher(options.batch_size, options.max_wait_ms))
        self._decoders = ThreadPoolExecutor(options.decode_threads, thread_name_prefix="decode")

    def start(self) -> Future[None]:
        """Start warming up; the future resolves once requests can be answered, or fails with what went wrong."""
        self.engine.start()
        return self.engine.ready

    def submit(self, request: Request) -> None:
        """Send an admitted request, whose slot has been taken, on its way. Its future tells the outcome."""
        self._decoders.submit(self._decode, request)

    def expected_wait_ms(self) -> int:
        """How long the images in flight will take, in milliseconds, at the pace of recent batches."""
        return round(1e3 * self.engine.seconds_per_image * self.slots.in_use)

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

    def _warm_up(self) -> Warm:
        options = self.options
        torch.set_num_threads(options.threads)
        graph = Graph(self.model, self.canvas)
        program = Program(graph, "eager: --no-compile")
        if options.compile:
            key = f"{self.model.version}-{self.model.preprocess}-{self.model.activation}"
            program = build_program(graph, key, options.batch_size, self.canvas, _CPU, options.compile_cache)
        lane = CpuLane(program, options.batch_size, self.canvas)
        with torch.inference_mode():
            for size in range(1, options.batch_size + 1):
                program.run(*example_inputs(size, self.canvas, _CPU))
        return Warm([lane], program.execution)


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
