"""Lanes on a CPU: a thread each, at the same time, and none in the results of another."""

import ctypes
import math
import threading
import time

import pytest
import torch
from torch import Tensor

from pipeline import malloc
from pipeline.canvas import Axis, Geometry
from pipeline.graph import Program
from pipeline.lane import CpuLane, ForwardFailed
from pipeline.request import Batch, Request
from pipeline.slots import SlotPool
from server import shares
from server.settings import Settings

_CANVAS = 4
_LONG_S = 30.0


def _means(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each image, and its row."""
    return canvas.float().mean(dim=(1, 2, 3))[:, None], torch.arange(len(canvas), dtype=torch.int32)[:, None]


def _batch(slots: SlotPool, *levels: int) -> Batch:
    axis = Axis(1.0, 0.0, _CANVAS)
    requests = []
    for level in levels:
        slot = slots.acquire()[0]
        slot.pixels.fill(level)
        requests.append(Request(b"", "", slot, math.inf, geometry=Geometry(axis, axis)))
    return Batch(requests)


def _wait(lane: CpuLane) -> None:
    deadline = time.monotonic() + _LONG_S
    while not lane.done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_two_lanes_run_at_the_same_time_and_answer_with_their_own() -> None:
    together = threading.Barrier(2)

    def run(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        together.wait(_LONG_S)  # raises if the other lane does not come
        return _means(canvas, geometry)

    slots = SlotPool(4, _CANVAS)
    lanes = [CpuLane(Program(run, "eager"), 2, _CANVAS) for _ in range(2)]
    for turn in range(50):
        for lane, levels in zip(lanes, ((turn, 100), (200,)), strict=True):
            lane.start(_batch(slots, *levels))
        assert slots.in_use == 0, "slots are free once they have been read"
        for lane, means in zip(lanes, ([turn, 100], [200]), strict=True):
            _wait(lane)
            scores, rows = lane.results()
            assert scores[:, 0].tolist() == means
            assert rows[:, 0].tolist() == list(range(len(means)))


def test_a_batch_is_stamped_around_its_forward_and_not_around_its_wait() -> None:
    may_run = threading.Event()

    def run(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        may_run.wait(_LONG_S)
        return _means(canvas, geometry)

    batch = _batch(SlotPool(1, _CANVAS), 7)
    lane = CpuLane(Program(run, "eager"), 1, _CANVAS)
    lane.start(batch)
    assert not lane.done()
    time.sleep(0.05)
    may_run.set()
    _wait(lane)
    stamps = batch.requests[0].stamps
    assert stamps.forward_end - stamps.forward_start >= 0.05e9


def test_a_forward_that_raises_is_told_and_the_lane_goes_on() -> None:
    failures = [RuntimeError("not enough memory")]

    def run(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        if failures:
            raise failures.pop()
        return _means(canvas, geometry)

    slots = SlotPool(2, _CANVAS)
    lane = CpuLane(Program(run, "eager"), 1, _CANVAS)
    lane.start(_batch(slots, 1))
    with pytest.raises(ForwardFailed, match="not enough memory") as failed:
        _wait(lane)
    assert isinstance(failed.value.__cause__, RuntimeError)
    lane.start(_batch(slots, 2))
    _wait(lane)
    assert lane.results()[0].tolist() == [[2.0]]


def test_a_device_that_the_model_itself_has_lost_is_lost_to_the_engine() -> None:
    def run(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    lane = CpuLane(Program(run, "eager"), 1, _CANVAS)
    lane.start(_batch(SlotPool(1, _CANVAS), 1))
    with pytest.raises(torch.AcceleratorError):
        _wait(lane)


def test_each_lane_has_the_threads_that_it_was_given() -> None:
    threads: list[int] = []

    def run(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        threads.append(torch.get_num_threads())
        return _means(canvas, geometry)

    mine = torch.get_num_threads()
    for count in (1, 3):
        CpuLane(Program(run, "eager"), 1, _CANVAS, count).run_example()
    assert threads == [1, 3]
    assert torch.get_num_threads() == mine


@pytest.mark.parametrize(
    ("cpus", "flags", "on_gpu", "lanes_and_threads"),
    [
        (2, {}, False, (2, 1)),
        (1, {}, False, (1, 1)),
        (16, {}, False, (16, 1)),
        (16, {"threads": 4}, False, (4, 4)),
        (16, {"lanes": 4}, False, (4, 4)),
        (16, {"lanes": 5}, False, (5, 3)),
        (2, {"lanes": 8}, False, (8, 1)),
        (2, {"threads": 8}, False, (1, 8)),
        (16, {"lanes": 2, "threads": 2}, False, (2, 2)),
        (16, {"devices": ("cpu", "cpu"), "frontends": 1}, False, (8, 1)),
        (16, {}, True, (3, 16)),
        (16, {"lanes": 5}, True, (5, 16)),
    ],
)
def test_cores_become_lanes(
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    flags: dict[str, object],
    on_gpu: bool,
    lanes_and_threads: tuple[int, int],
) -> None:
    monkeypatch.setattr(shares, "available_cpus", lambda: cpus)
    assert shares.lanes_and_threads(Settings(**flags), on_gpu) == lanes_and_threads  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "on_gpu", "size"), [(0, False, 2), (0, True, 8), (5, False, 5), (5, True, 5)])
def test_a_batch_is_small_on_a_cpu(asked: int, on_gpu: bool, size: int) -> None:
    assert shares.batch_size(Settings(batch_size=asked), on_gpu) == size


def test_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Glibc:
        def mallopt(self, option: int, value: int) -> int:
            asked.append((option, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Glibc())
    malloc.keep_freed_memory()
    # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
    assert asked == [(-3, 128 << 20), (-1, 512 << 20)]


def test_a_c_library_that_cannot_keep_it_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    malloc.keep_freed_memory()
