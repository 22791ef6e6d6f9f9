"""The lanes by themselves, fed with random pixels: no batcher, no engine, no requests that come and go."""

import time
from collections.abc import Callable, Sequence
from itertools import islice
from statistics import median

import torch

from bench.trace import TraceSummary, profile_batches
from pipeline.canvas import FILTER_SUPPORT, Geometry, crop_geometry, identity_geometry, resizes_in_graph
from pipeline.engine import Warm
from pipeline.lane import Lane
from pipeline.model import Model
from pipeline.options import Options
from pipeline.preprocess import Preprocess
from pipeline.request import Batch, Request
from pipeline.slots import Slot, SlotPool

# Height and width in pixels: of bench.mix's set `small`.
PHOTOGRAPH = (375, 500)
_REPEATS = 3
_POLL_S = 200e-6
_WARM_UP_SHARE = 0.1


class Feed:
    """A model on its lanes, and what they are fed.

    Attributes:
        geometry: of a photograph of the size that every target means.
    """

    def __init__(self, model: Model, options: Options, warm: Warm) -> None:
        self.options = options
        self.warm = warm
        self.canvas = options.canvas_for(model)
        in_graph = resizes_in_graph(self.canvas, model.preprocess)
        self.geometry: Geometry = (
            _window(model.preprocess, self.canvas) if in_graph else identity_geometry(model.preprocess)
        )

    def slots(self, count: int) -> SlotPool:
        """Slots full of random pixels, where a decoder of the service would have written."""
        pool = SlotPool(count, self.canvas, pinned=self.options.on_gpu)
        pool.block.random_(0, 256)
        return pool


def _window(preprocess: Preprocess, canvas: int) -> Geometry:
    """How the crop samples a canvas that holds the window of a photograph of `PHOTOGRAPH`, or as much as fits."""
    whole = crop_geometry(min(PHOTOGRAPH[0], canvas), min(PHOTOGRAPH[1], canvas), preprocess)
    support = FILTER_SUPPORT[preprocess.interpolation]
    height, width = preprocess.crop
    return Geometry(
        whole.y.cut(*whole.y.window(height, support)),
        whole.x.cut(*whole.x.window(width, support)),
    )


class _KeptSlot(Slot):
    """Stays filled: giving it back does nothing."""

    def release(self) -> None:
        pass


class _Refilled:
    """A lane with a full batch that can be started over and over."""

    def __init__(self, lane: Lane, slots: Sequence[Slot], geometry: Geometry) -> None:
        self.lane = lane
        self._slots = slots
        self._batch = Batch([Request(b"", "", slot, geometry=geometry) for slot in slots])
        self._is_idle = True

    def start(self) -> None:
        for request, slot in zip(self._batch.requests, self._slots, strict=True):
            request.slot = slot
        self.lane.start(self._batch)
        self._is_idle = False

    def is_done(self) -> bool:
        """Whether it can be started."""
        self._is_idle = self._is_idle or self.lane.done()
        return self._is_idle

    def run(self) -> None:
        """Start, and poll until done."""
        self.start()
        while not self.lane.done():
            _pause()


def replay_ms(feed: Feed, lanes: int, batches: int) -> float:
    """Milliseconds a batch of the graphs alone, `lanes` of them at a time; no copies."""
    refilled = _refill(feed, lanes)
    for each in refilled:
        each.run()  # leaves random pixels in the lane's canvas: zeros run faster

    def run(count: int) -> None:
        for number in range(count):
            refilled[number % lanes].lane.run_example()

    return _median_ms(run, batches)


def lanes_ms(feed: Feed, lanes: int, batches: int) -> float:
    """Milliseconds a batch with the copies in and out; each lane starts again as soon as it is done."""
    refilled = _refill(feed, lanes)

    def run(count: int) -> None:
        started = 0
        while started < count:
            for each in refilled:
                if each.is_done():
                    each.start()
                    started += 1
            _pause()
        while not all(each.is_done() for each in refilled):
            _pause()

    return _median_ms(run, batches)


def profile_graph(feed: Feed, batches: int) -> TraceSummary:
    """What one batch consists of, one lane, one batch at a time."""
    return profile_batches(_refill(feed, 1)[0].run, batches)


def _refill(feed: Feed, lanes: int) -> list[_Refilled]:
    size = feed.options.batch_size
    pool = feed.slots(lanes * size)
    kept = iter([_KeptSlot(pool, index, pool.block[index]) for index in range(lanes * size)])
    return [_Refilled(lane, list(islice(kept, size)), feed.geometry) for lane in feed.warm.lanes[:lanes]]


def _median_ms(run: Callable[[int], None], batches: int) -> float:
    """Wall milliseconds a batch, the median of some repeats, the device's work included."""
    run(max(1, int(_WARM_UP_SHARE * batches)))
    return median(_timed_ms(run, batches) for _ in range(_REPEATS))


def _timed_ms(run: Callable[[int], None], batches: int) -> float:
    _wait()
    started_s = time.perf_counter()
    run(batches)
    _wait()
    return 1e3 * (time.perf_counter() - started_s) / batches


def _pause() -> None:
    """On a CPU, leave the cores to the lanes."""
    if not torch.cuda.is_available():
        time.sleep(_POLL_S)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
