"""The service without gRPC or decoding: engine and batcher, fed with requests whose pixels lie in their slots."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import torch

from bench.feed_lanes import Feed
from bench.live import profile_live
from pipeline.batcher import Batcher
from pipeline.engine import Engine, Warm
from pipeline.options import padded_rows
from pipeline.profiling import Done
from pipeline.request import Request, Result
from pipeline.slots import SlotPool

_WARM_UP_S = 0.3
_IDLE_REQUESTS = 300
_IDLE_SECONDS = 2.0
_POLL_S = 50e-6
_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Served:
    """The service without gRPC.

    Attributes:
        in_flight: requests under way at all times.
        img_s: images per second.
        batch_fill: mean images in a batch.
        idle_p50_ms: submit to result of one request, nothing else under way.
        gpu_busy: kernel time over wall time; None without a GPU.
        useful_busy: of it, what was spent on real images.
    """

    in_flight: int
    img_s: float
    batch_fill: float
    idle_p50_ms: float
    gpu_busy: float | None = None
    useful_busy: float | None = None

    def profiled(self, feed: Feed, lanes: int, batches: int, seconds: float) -> "Served":
        """With the GPU's share: kernels from a profile of the same load, the wall from the load without it."""
        with _engine(feed, lanes) as engine, ThreadPoolExecutor(1) as pool:
            load = _Load(engine, feed, self.in_flight)
            running = pool.submit(load.run, _LONGEST_S)
            try:
                live = profile_live(batches, seconds, load.done, load.stop)
                trace = live.trace.at_wall(1e3 * self.batch_fill / self.img_s)
            finally:
                load.stop()
                running.result()
        rows = padded_rows(self.batch_fill, feed.options.batch_size, feed.options.graph_sizes)
        useful = trace.gpu_busy * self.batch_fill / rows
        return replace(self, gpu_busy=trace.gpu_busy, useful_busy=useful)


def measure_engine(feed: Feed, lanes: int, seconds: float) -> Served:
    """Throughput with many requests under way, and the latency of one."""
    with _engine(feed, lanes) as engine:
        # As many again as the lanes hold, so that the next batches are full when a lane is free.
        load = _Load(engine, feed, 2 * lanes * feed.options.batch_size + feed.options.batch_size)
        load.run(_WARM_UP_S)
        before, started_s = load.done(), time.perf_counter()
        load.run(seconds)
        work, elapsed_s = load.done().since(before), time.perf_counter() - started_s
        return Served(load.in_flight, work.images / elapsed_s, work.images / work.batches, _idle_p50_ms(load))


class _Load:
    """A closed loop: for each request that is answered, another is submitted."""

    def __init__(self, engine: Engine, feed: Feed, in_flight: int) -> None:
        self.in_flight = in_flight
        self._engine = engine
        self._geometry = feed.geometry
        self._slots: SlotPool = feed.slots(in_flight)
        self._answered: deque[Future[Result]] = deque()
        self._images = self._batches = self._stop_s = 0.0

    def done(self) -> Done:
        """Answered so far."""
        return Done(self._batches, self._images)

    def run(self, seconds: float) -> None:
        """Keep `in_flight` under way for so long, then wait for the last."""
        self._stop_s = time.monotonic() + seconds
        self._submit(self.in_flight)
        waiting = self.in_flight
        while waiting:
            count = self._collect()
            waiting -= count
            if count and time.monotonic() < self._stop_s:
                self._submit(count)
                waiting += count
            if not count:
                time.sleep(_POLL_S)

    def stop(self) -> None:
        """End `run`, which another thread is in."""
        self._stop_s = 0.0

    def one_ms(self) -> float:
        """Milliseconds of one request, from submit to result."""
        request = self._request()
        started_s = time.perf_counter()
        self._engine.submit(request)
        request.future.result()
        return 1e3 * (time.perf_counter() - started_s)

    def _submit(self, count: int) -> None:
        for slot in self._slots.acquire(count):
            request = Request(b"", "", slot, geometry=self._geometry)
            request.future.add_done_callback(self._answered.append)
            self._engine.submit(request)

    def _request(self) -> Request:
        return Request(b"", "", self._slots.acquire()[0], geometry=self._geometry)

    def _collect(self) -> int:
        """Take in what has been answered; how many."""
        count = len(self._answered)
        for _ in range(count):
            self._batches += 1 / self._answered.popleft().result().batch_fill
        self._images += count
        return count


def _idle_p50_ms(load: _Load) -> float:
    stop_s = time.monotonic() + _IDLE_SECONDS
    times_ms: list[float] = []
    while len(times_ms) < _IDLE_REQUESTS and time.monotonic() < stop_s:
        times_ms.append(load.one_ms())
        time.sleep(_POLL_S)
    return median(times_ms)


@contextmanager
def _engine(feed: Feed, lanes: int) -> Iterator[Engine]:
    """An engine on the first of the lanes, which are warm already."""

    def warm_up() -> Warm:
        # Threads of the forward are a setting of the thread that runs it.
        torch.set_num_threads(feed.options.threads)
        return replace(feed.warm, lanes=feed.warm.lanes[:lanes])

    engine = Engine(warm_up, Batcher(feed.options.batch_size, feed.options.max_wait_ms))
    engine.start()
    engine.ready.result()
    try:
        yield engine
    finally:
        engine.stop()
