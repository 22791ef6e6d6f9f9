"""The engine: one thread that owns the device and runs the lanes. No timers, no waiting for the device.

    take batch -> start it on a free lane -> poll the busy lanes -> answer

Model loading, compilation, warm-up and every forward happen on this thread.
"""

import enum
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from pipeline import metrics
from pipeline.batcher import Source
from pipeline.errors import Unavailable
from pipeline.gpu_open import GpuDecode
from pipeline.lane import ForwardFailed, Lane
from pipeline.lane_use import LaneUse
from pipeline.naps import sleep_precisely
from pipeline.recompiles import RecompileWatch
from pipeline.request import Batch, Request

log = logging.getLogger(__name__)


class State(enum.Enum):
    """The engine's life, in order."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Warm:
    """What a start-up has built.

    Attributes:
        lanes: at least one, warmed up.
        execution: how they run, in words.
        cost: what a batch costs, in words; empty where nothing was compiled.
        gpu_decode: what decodes JPEG files on the device; None where the CPU does.
        shares: whether what is queued is shared out to idle lanes, for whom fewer images are less work.
        poll_s: how long the engine sleeps while a lane is busy and nothing is queued, in seconds: whoever waits for
            that lane waits for the rest.
        full_poll_s: the same while all lanes are: more often would only take Python's lock from the threads that feed
            them.
    """

    lanes: Sequence[Lane]
    execution: str
    cost: str = ""
    gpu_decode: GpuDecode | None = None
    shares: bool = False
    poll_s: float = 50e-6
    full_poll_s: float = 100e-6


class Engine:
    """Takes decoded requests and resolves their futures.

    Args:
        warm_up: builds the lanes; called on the engine's own thread, since captures belong where replays are.
        batcher: where requests gather.

    Attributes:
        execution, cost, gpu_decode: see `Warm`; empty until warm.
        on_recompile: called on the engine's thread when something was compiled after warm-up.
        on_death: called on the engine's thread if it ends by an error after it was ready.
    """

    def __init__(self, warm_up: Callable[[], Warm], batcher: Source) -> None:
        self.batcher = batcher
        self.state = State.STARTING
        self.execution = self.cost = ""
        self.gpu_decode: GpuDecode | None = None
        self.ready: Future[None] = Future()
        self.on_death: Callable[[], None] | None = None
        self.on_recompile: Callable[[], None] | None = None
        self._recompiles = RecompileWatch()
        self._warm_up = warm_up
        self._idle: deque[Lane] = deque()
        self._busy: deque[tuple[Lane, Batch]] = deque()
        self._use = LaneUse()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; `ready` resolves once it is warm, or fails with what went wrong."""
        self._thread.start()

    def submit(self, *requests: Request) -> None:
        """Queue decoded requests, all at once. Their slots are the engine's from here on, also if this raises.

        Raises:
            Unavailable: the engine is not serving.
        """
        if self.state not in (State.READY, State.DRAINING) or not self.batcher.put(*requests):
            for request in requests:
                request.release_slot()
            raise Unavailable(f"the engine is {self.state.value}")

    def drain(self) -> None:
        """Take no new work from now on; what has been submitted is still answered. See `stop`."""
        if self.state is State.READY:
            self.state = State.DRAINING

    def stop(self, timeout_s: float = 30.0) -> None:
        """Answer what is queued, then end the thread."""
        self.drain()
        self.batcher.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self.state = State.STOPPED
        self.batcher.fail_all(Unavailable("the server has stopped"))

    def _run(self) -> None:
        sleep_precisely()
        try:
            warm = self._warm_up()
        except BaseException as error:
            self.state = State.STOPPED
            self.ready.set_exception(error)
            return
        self._recompiles.news()  # those of the warm-up are none
        self._idle.extend(warm.lanes)
        self.execution, self.cost, self.gpu_decode = warm.execution, warm.cost, warm.gpu_decode
        self.state = State.READY
        self.ready.set_result(None)
        try:
            with metrics.ENGINES_WARM.track_inprogress(), torch.inference_mode():
                self._serve(warm)
        except BaseException as error:
            log.critical("the engine has died", exc_info=error)
            self._die()

    def _die(self) -> None:
        """Fail whatever is under way: a device that has failed once answers nothing more."""
        self.state = State.STOPPED
        error = Unavailable("the engine has died")
        for _, batch in self._busy:
            _fail(batch, error)
        self.batcher.close()
        self.batcher.fail_all(error)
        if self.on_death is not None:
            self.on_death()

    def _serve(self, warm: Warm) -> None:
        while not self.batcher.finished or self._busy:
            self.batcher.beat(min((batch.begun_ns for _, batch in self._busy), default=time.monotonic_ns()))
            batch = None
            if self._idle:
                batch = self.batcher.take(warm.poll_s if self._busy else None, len(self._idle) if warm.shares else 1)
            if batch is not None:
                self._start(batch)
            elif not self._idle:
                # What is still to be decoded can be, meanwhile.
                self.batcher.gather()
                time.sleep(warm.full_poll_s)
            self._finish_done()

    def _start(self, batch: Batch) -> None:
        lane = self._idle.popleft()
        self._use.begin()
        try:
            lane.start(batch)
        except torch.AcceleratorError:
            # The context is lost, and copies from the slots may be under way: nothing can go on in this process.
            self._busy.append((lane, batch))
            raise
        except Exception as error:
            log.exception("a batch of %d failed", len(batch))
            self._use.end()
            self._idle.append(lane)
            _fail(batch, error)
            return
        self._busy.append((lane, batch))

    def _finish_done(self) -> None:
        for _ in range(len(self._busy)):
            # Busy until it is answered: if the lane raises here, `_die` must find the batch.
            lane, batch = self._busy[0]
            try:
                if not lane.done():
                    self._busy.rotate(-1)
                    continue
                self._use.end()
                self._resolve(lane, batch)
            except ForwardFailed as failure:
                log.error("a batch of %d failed", len(batch), exc_info=failure.__cause__)
                self._use.end()
                _fail(batch, failure.__cause__ if isinstance(failure.__cause__, Exception) else failure)
            self._busy.popleft()
            self._idle.append(lane)

    def _resolve(self, lane: Lane, batch: Batch) -> None:
        batch.answer(*lane.results())
        self._observe(batch)

    def _observe(self, batch: Batch) -> None:
        stamps = batch.requests[0].stamps
        self.batcher.note_batch((stamps.forward_end - stamps.batched) / 1e9)
        metrics.BATCH_FILL.observe(len(batch))
        recompiled = self._recompiles.news()
        if recompiled:
            metrics.RECOMPILES.inc(recompiled)
            log.warning("%d compilations or graph breaks after warm-up, at a batch of %d", recompiled, len(batch))
            if self.on_recompile is not None:
                self.on_recompile()


def _fail(batch: Batch, error: Exception) -> None:
    for request in batch.requests:
        request.abandon(error)
