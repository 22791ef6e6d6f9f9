"""The embedded form: decode threads and engine in one process, behind the gRPC servicer.

submit -> decode thread: header, decode, window into the slot -> batcher -> engine thread -> request.future
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from pipeline import metrics
from pipeline.batcher import Batcher
from pipeline.decoders import Decoders
from pipeline.engine import Engine, State
from pipeline.errors import Unavailable
from pipeline.gpu_decode import GpuDecoder
from pipeline.gpu_stage import GpuStage
from pipeline.headers import Limits
from pipeline.lanes import build_lanes, describe
from pipeline.model import Model
from pipeline.options import Options
from pipeline.profiling import record_aside
from pipeline.request import Request
from pipeline.slots import SlotPool


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
        self.info = describe(model, options)
        self.canvas = self.info.canvas
        self.slots = SlotPool(options.slots, self.canvas, pinned=options.on_gpu)
        self._batcher = Batcher(options.batch_size, options.max_wait_ms)
        self.engine = Engine(lambda: build_lanes(model, options), self._batcher)
        self._gpu_decoder: GpuDecoder[Request] | None = None
        self._stage: GpuStage | None = None
        self.engine.ready.add_done_callback(self._on_ready)
        self.decoders = Decoders(options.decode_threads, limits, self.engine.submit, skip=options.skip_decode)
        self.decoders.slots = options.slots

    def start(self) -> Future[None]:
        """Start warming up; the future resolves once requests can be answered, or fails with what went wrong."""
        self.engine.start()
        return self.engine.ready

    def check_serving(self) -> None:
        """See `backend.Backend.check_serving`."""
        if self.engine.state is not State.READY:
            raise Unavailable(f"the engine is {self.engine.state.value}")

    def submit(self, request: Request) -> None:
        """See `backend.Backend.submit`."""
        if self._stage is None or not self._stage.take(request, self.model):
            self.decoders.submit(request, self.model)

    def expected_wait_ms(self) -> int:
        """See `backend.Backend.expected_wait_ms`."""
        batches = self.slots.in_use / self.options.batch_size / self.info.lanes
        return round(1e3 * self._batcher.seconds_per_batch * batches)

    def silent_s(self) -> float:
        """For how long a device that has work has shown nothing, in seconds: its engine's thread or its decoder's."""
        begun_ns = [self._batcher.begun_ns, self._gpu_decoder.begun_ns if self._gpu_decoder is not None else 0]
        now_ns = time.monotonic_ns()
        return max(now_ns - (each or now_ns) for each in begun_ns) / 1e9

    def watch_slots(self, on_release: Callable[[], None]) -> None:
        """See `backend.Backend.watch_slots`."""
        self.slots.on_release = self.decoders.on_room = on_release

    async def profile(self, batches: int, timeout_s: float) -> bytes:
        """See `backend.Profiler.profile`."""
        self.check_serving()
        return await record_aside(batches, timeout_s)

    def stop(self) -> None:
        """Answer what has been submitted, then end all threads."""
        self.engine.drain()
        if self._gpu_decoder is not None:
            self._gpu_decoder.stop()
        self.decoders.shutdown()
        self.engine.stop()

    def _on_ready(self, ready: Future[None]) -> None:
        gpu = self.engine.gpu_decode
        if gpu is not None:
            self._gpu_decoder = GpuDecoder(gpu.decoder, gpu.rows, gpu.most, self._on_decoded)
            self._stage = GpuStage(self.limits, self._gpu_decoder.put)
        self.info = replace(
            self.info,
            execution=self.engine.execution,
            cost=self.engine.cost,
            gpu_decode=gpu.name if gpu is not None else "",
        )

    def _on_decoded(self, requests: Sequence[Request]) -> None:
        """On the decoder's thread."""
        refused = [request for request in requests if request.encoded is not None and not request.is_dead()]
        for request in refused:
            self._decode_here(request)
        # All at once: woken for the first, the engine would make a batch of it alone.
        self._submit_decoded([request for request in requests if request not in refused])

    def _decode_here(self, request: Request) -> None:
        """What the GPU does not take after all; what is wrong with it, the decode threads tell its caller."""
        metrics.count_route("refused by the GPU")
        request.take_back()
        self.decoders.submit(request, self.model)

    def _submit_decoded(self, requests: Sequence[Request]) -> None:
        try:
            self.engine.submit(*requests)
        except Unavailable as error:
            for request in requests:
                request.abandon(error)
