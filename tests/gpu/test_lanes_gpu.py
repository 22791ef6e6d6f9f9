"""The hot path on a real GPU: it never waits, never mixes callers up, and launches as little as was promised.

Every check of a promise has a negative control: a lane that breaks it, which the same check must catch.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import parity, parity_levels
from bench.events import Event
from bench.feed_engine import _Load
from bench.feed_lanes import Feed, _KeptSlot, _refill
from bench.live import read
from bench.trace import profile_batches
from pipeline import metrics
from pipeline.batcher import Batcher
from pipeline.canvas import Geometry, crop_geometry, place
from pipeline.compiler import build_program
from pipeline.cuda_lane import CudaLane
from pipeline.engine import Engine, Warm
from pipeline.errors import Overloaded
from pipeline.graph import Graph, Program, example_inputs
from pipeline.lane import Lane
from pipeline.lanes import DTYPES, build_lanes
from pipeline.model import Model, load_model
from pipeline.options import Options
from pipeline.preprocess import Interpolation, Preprocess
from pipeline.profiling import record
from pipeline.recompiles import RecompileWatch
from pipeline.reference import reference_levels
from pipeline.request import Batch, Request
from pipeline.slots import Slot, SlotPool
from pipeline.transforms import resize_levels
from tests.test_ladder import TINY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # CUDA, cuDNN and inductor warn of many things that are none of ours.
    pytest.mark.filterwarnings("default"),
]

GPU = torch.device("cuda:0")
OPTIONS = Options(batch_size=8, slots=64, threads=4, decode_threads=4, device="cuda:0", dtype="fp16", lanes=3)
CANVAS = 256
STEADY_BATCHES = 1_000
OVERLAPPING_BATCHES = 10_000
# Of a probability. Kernels may sum in another order from run to run; another image's answer is far off.
TOLERANCE = 1e-3
# Kernels of another batch size round otherwise.
HALF_TOLERANCE = 1e-2
# What the reference may give its own label above ours, of a probability.
NEAR_TIE = 0.05
CALLERS, SLOTS = 64, 48
CALLER_SECONDS = 60.0 if os.environ.get("WARMLANE_LONG") else 20.0
# Levels above are never sent: whatever answers with one has read a slot that was free already.
LEVELS, POISON = 200, 230


class Levels(nn.Module):
    """The class of an image is its mean grey level, so that each answer says whose it is."""

    levels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("levels", torch.arange(256.0))

    def forward(self, images: Tensor) -> Tensor:
        means = images.float().mean(dim=(1, 2, 3)) * 255
        return -((self.levels.float() - means[:, None]) ** 2)


class Reading(Levels):
    """Reads a number off the device in its forward, which no CUDA graph can hold."""

    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return logits if logits.amax().item() < 1e9 else -logits


class SpoiledLane(CudaLane):
    """Does something wrong after each forward."""

    spoil: Callable[[CudaLane], object]

    def _forward(self) -> None:
        super()._forward()
        self.spoil(self)


class HastyLane(CudaLane):
    """Copies late, and lets the slots be written before: what an engine does that frees them too early."""

    def _copy_in(self, batch: Batch) -> None:
        torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        super()._copy_in(batch)
        for request in batch.requests:
            assert request.slot is not None
            request.slot.pixels.fill(POISON)


class ScribblingPool(SlotPool):
    """Overwrites each slot the moment that it is free."""

    def release(self, slot: Slot) -> None:
        slot.pixels.fill(POISON)
        super().release(slot)


def levels_model(module: nn.Module) -> Model:
    preprocess = Preprocess(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return Model("levels", "v", module.eval(), tuple(map(str, range(256))), preprocess)


def eager_program(model: Model) -> Program:
    return Program(Graph(model, CANVAS, torch.float16).to(GPU), "eager")


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def served(default_model: Model) -> Feed:
    """EfficientNet-Lite0 as the service would run it: compiled, three lanes, fp16."""
    warm = build_lanes(default_model, OPTIONS)
    print(f"\n{warm.execution}; {warm.cost}")
    return Feed(default_model, OPTIONS, warm)


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model(TINY)


@contextmanager
def engine_on(lanes: Sequence[Lane]) -> Iterator[Engine]:
    engine = Engine(lambda: Warm(lanes, "under test"), Batcher(OPTIONS.batch_size))
    engine.start()
    engine.ready.result(60)
    try:
        yield engine
    finally:
        engine.stop()


def traced(feed: Feed, batches: int) -> Sequence[Event]:
    """What the process did in a slice of steady load through the engine. Nobody else in it calls CUDA meanwhile."""
    with engine_on(feed.warm.lanes) as engine, ThreadPoolExecutor(1) as pool:
        load = _Load(engine, feed, 2 * len(feed.warm.lanes) * OPTIONS.batch_size)
        running = pool.submit(load.run, 60.0)
        try:
            found = read(record(batches, 30.0, load.done))
        finally:
            load.stop()
            running.result()
    assert found.work.batches >= batches - 1
    return found.events


def waits(events: Sequence[Event]) -> Counter[str]:
    """Calls in which the host waits for the device, or that wait inside CUDA, and copies that are not from pinned
    memory or to it."""
    blocking = ("cudaMemcpy", "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost")
    calls = (event.name for event in events if event.kind == "call")
    copies = (event.name for event in events if event.kind == "copy")
    return Counter(name for name in calls if "Synchronize" in name or name in blocking) + Counter(
        name for name in copies if ("HtoD" in name or "DtoH" in name) and "Pinned" not in name
    )


def test_a_thousand_steady_batches_wait_for_nothing(served: Feed) -> None:
    events = traced(served, STEADY_BATCHES)
    assert not waits(events)
    copies = Counter(event.name for event in events if event.kind == "copy")
    print(f"\n{copies}")
    # Eight slots and the geometry in, scores and classes out.
    assert copies["Memcpy HtoD (Pinned -> Device)"] >= 0.9 * 9 * STEADY_BATCHES
    assert copies["Memcpy DtoH (Device -> Pinned)"] >= 0.9 * 2 * STEADY_BATCHES
    launches = sum(event.name.startswith(("cudaLaunch", "cuLaunch")) for event in events if event.kind == "call")
    graphs = sum(event.name.startswith("cudaGraphLaunch") for event in events if event.kind == "call")
    assert graphs >= 0.9 * STEADY_BATCHES
    assert launches <= 0.01 * graphs, "kernels beside the graphs"


SPOILS: dict[str, Callable[[Any], object]] = {
    "item": lambda lane: lane._full.scores_gpu[0, 0].item(),
    "device synchronize": lambda lane: torch.cuda.synchronize(),
    "stream synchronize": lambda lane: lane._stream.synchronize(),
    "event synchronize": lambda lane: lane._copied._event.synchronize(),
    "blocking copy in": lambda lane: lane._geometry_gpu.copy_(torch.zeros(8, 6)),
    "pageable copy in": lambda lane: lane._geometry_gpu.copy_(torch.zeros(8, 6), non_blocking=True),
    "blocking copy out": lambda lane: lane._full.scores_gpu.cpu(),
}


def spoiled(tiny: Model, spoil: Callable[[CudaLane], object] | None) -> Feed:
    options = replace(OPTIONS, canvas=CANVAS, lanes=1)
    lane = SpoiledLane(eager_program(tiny), 8, CANVAS, GPU)
    lane.spoil = spoil or (lambda lane: None)
    return Feed(tiny, options, Warm([lane], "under test"))


@pytest.mark.parametrize("name", SPOILS)
def test_every_kind_of_wait_is_seen(tiny: Model, name: str) -> None:
    found = waits(traced(spoiled(tiny, SPOILS[name]), 30))
    print(f"\n{name}: {found}")
    assert sum(found.values()) >= 20


def test_the_same_lane_unspoiled_waits_for_nothing(tiny: Model) -> None:
    assert not waits(traced(spoiled(tiny, None), 30))


@contextmanager
def sync_debug_mode(mode: str) -> Iterator[None]:
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_pytorchs_own_sync_check_agrees(served: Feed, tiny: Model) -> None:
    with engine_on(served.warm.lanes) as engine:
        load = _Load(engine, served, 48)
        with sync_debug_mode("error"):
            load.run(0.5)
    assert load.done().batches > 50
    feed = spoiled(tiny, SPOILS["item"])
    with engine_on(feed.warm.lanes) as engine:
        load = _Load(engine, feed, 1)
        with sync_debug_mode("error"), pytest.raises(RuntimeError, match="synchron"):
            load.one_ms()


def eights(images: Sequence[parity_levels.Pixels]) -> list[Sequence[parity_levels.Pixels]]:
    return [images[start : start + 8] for start in range(0, len(images), 8)]


class Filled:
    """Slots with real images in them, to be sent again and again."""

    def __init__(self, images: Sequence[parity_levels.Pixels], preprocess: Preprocess, canvas: int) -> None:
        pool = SlotPool(len(images), canvas, pinned=True)
        self.slots = [_KeptSlot(pool, index, pool.block[index]) for index in range(len(images))]
        placed = zip(images, self.slots, strict=True)
        self.geometries = [place(pixels, 1, preprocess, slot.pixels) for pixels, slot in placed]

    def batch(self) -> Batch:
        rows = zip(self.slots, self.geometries, strict=True)
        return Batch([Request(b"", "", slot, geometry=geometry) for slot, geometry in rows])


Answers = tuple[NDArray[np.float32], NDArray[np.int32]]


def answers(lane: Lane, count: int) -> Answers:
    scores, indices = lane.results()
    return scores[:count].copy(), indices[:count].copy()


def run_alone(lane: Lane, filled: Filled) -> Answers:
    lane.start(filled.batch())
    while not lane.done():
        pass
    return answers(lane, len(filled.slots))


def test_overlapping_lanes_give_what_each_gives_alone(served: Feed, default_model: Model) -> None:
    images = parity.views(parity.photographs(), 32)
    # Among them some of one image, which have a graph of their own beside the full one in the same memory.
    groups = [*eights(images), *([image] for image in images[::8])]
    sets = [Filled(group, default_model.preprocess, served.canvas) for group in groups]
    lanes = served.warm.lanes
    alone = [[run_alone(lane, filled) for filled in sets] for lane in lanes]
    for one, other in zip(alone[0], alone[0][1:], strict=False):
        assert np.abs(one[0] - other[0]).max() > 10 * TOLERANCE, "sets that cannot be told apart prove nothing"
    random, running = Random(0), dict[int, int]()
    started = ended = identical = 0
    furthest = 0.0
    while ended < OVERLAPPING_BATCHES:
        for number, lane in enumerate(lanes):
            if not lane.done():
                continue
            if number in running:
                which = running.pop(number)
                expected, found = alone[number][which], answers(lane, len(sets[which].slots))
                furthest = max(furthest, float(np.abs(found[0] - expected[0]).max()))
                identical += np.array_equal(found[0], expected[0]) and np.array_equal(found[1], expected[1])
                ended += 1
            if started < OVERLAPPING_BATCHES:
                running[number] = random.randrange(len(sets))
                lane.start(sets[running[number]].batch())
                started += 1
    print(f"\n{identical} of {ended} batches bit for bit as alone, scores at most {furthest} apart")
    assert furthest <= TOLERANCE


def test_served_answers_are_the_references(served: Feed, default_model: Model) -> None:
    sources = parity.photographs()
    images = [*sources, *parity.views(sources)]
    expected = parity.reference_probabilities(default_model, images, GPU)
    found: list[int] = []
    for number, group in enumerate(eights(images)):
        lane = served.warm.lanes[number % len(served.warm.lanes)]
        found += run_alone(lane, Filled(group, default_model.preprocess, served.canvas))[1][:, 0].tolist()
    labels = expected.argmax(dim=1)
    distinct, agrees = len(set(labels.tolist())), (labels == torch.tensor(found)).float().mean().item()
    print(f"\ntop-1 of {len(images)} images with {distinct} labels: {100 * agrees:.2f}% as the reference")
    assert distinct >= parity.LEAST_LABELS
    assert agrees >= 0.97
    lost = expected.amax(dim=1) - expected.gather(1, torch.tensor(found)[:, None]).squeeze(1)
    assert lost.max() <= NEAR_TIE, "half precision decides near ties otherwise, and nothing else"


def test_an_image_that_is_alone_has_a_graph_of_its_own(served: Feed, default_model: Model) -> None:
    lane = served.warm.lanes[0]
    assert isinstance(lane, CudaLane)
    assert lane.sizes == (1, 8)
    images = parity.photographs()[:8]
    together = run_alone(lane, Filled(images, default_model.preprocess, served.canvas))
    padding = metrics.PADDING_ROWS._value.get()
    for number, image in enumerate(images):
        scores, indices = run_alone(lane, Filled([image], default_model.preprocess, served.canvas))
        found = dict(zip(indices[0].tolist(), scores[0].tolist(), strict=True))
        first = [found[index] for index in together[1][number, :3].tolist()]
        assert np.abs(np.array(first) - together[0][number, :3]).max() < HALF_TOLERANCE
    assert metrics.PADDING_ROWS._value.get() == padding
    run_alone(lane, Filled(images[:3], default_model.preprocess, served.canvas))
    assert metrics.PADDING_ROWS._value.get() == padding + 5


class EightsOnly(Levels):
    """Knows one batch size."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.view(8, *images.shape[1:]))


def test_a_model_of_one_batch_size_is_served_at_that_size() -> None:
    warm = build_lanes(levels_model(EightsOnly()), replace(OPTIONS, canvas=CANVAS, compile=False, lanes=1))
    lane = warm.lanes[0]
    assert isinstance(lane, CudaLane)
    assert (lane.sizes, lane.capture_error) == ((8,), "")
    pool = SlotPool(1, CANVAS, pinned=True)
    slot = pool.acquire()[0]
    slot.pixels.fill(77)
    geometry = crop_geometry(CANVAS, CANVAS, Preprocess())
    lane.start(Batch([Request(b"", "", slot, geometry=geometry)]))
    while not lane.done():
        pass
    assert lane.results()[1][0, 0] == 77


def call(engine: Engine, pool: SlotPool, geometry: Geometry, seed: int, stop_s: float) -> Counter[str]:
    """One caller: send a level, sometimes leave before the answer, else look whose answer it is."""
    random, outcomes = Random(seed), Counter[str]()
    while time.monotonic() < stop_s:
        try:
            slot = pool.acquire()[0]
        except Overloaded:
            time.sleep(1e-3)
            continue
        level = random.randrange(LEVELS)
        slot.pixels.fill(level)
        request = Request(b"", "levels", slot, geometry=geometry)
        engine.submit(request)
        if random.random() < 0.3:
            time.sleep(random.random() * 2e-3)
            if request.future.cancel():
                outcomes["cancelled"] += 1
                continue
        found = int(request.future.result(30).indices[0])
        outcomes["right" if found == level else f"sent {level}, got {found}"] += 1
    return outcomes


def all_callers(lanes: Sequence[Lane], seconds: float) -> Counter[str]:
    pool = ScribblingPool(SLOTS, CANVAS, pinned=OPTIONS.on_gpu)
    geometry = crop_geometry(CANVAS, CANVAS, Preprocess())
    with engine_on(lanes) as engine, ThreadPoolExecutor(CALLERS) as callers:
        stop_s = time.monotonic() + seconds
        calls = [callers.submit(call, engine, pool, geometry, seed, stop_s) for seed in range(CALLERS)]
        outcomes = sum((each.result() for each in calls), Counter[str]())
    assert pool.in_use == 0, "slots that were never given back"
    return outcomes


def test_every_answer_belongs_to_its_caller() -> None:
    warm = build_lanes(levels_model(Levels()), replace(OPTIONS, canvas=CANVAS, compile=False))
    outcomes = all_callers(warm.lanes, CALLER_SECONDS)
    print(f"\n{outcomes.most_common(5)}")
    assert outcomes.keys() == {"right", "cancelled"}
    assert outcomes["right"] > 100 * CALLER_SECONDS


def test_slots_that_are_freed_too_early_are_noticed() -> None:
    lane = HastyLane(eager_program(levels_model(Levels())), 8, CANVAS, GPU)
    outcomes = all_callers([lane], 1.0)
    print(f"\n{outcomes.most_common(3)}")
    assert any(outcome.endswith(f"got {POISON}") for outcome in outcomes)


def test_a_batch_is_few_launches(served: Feed, default_model: Model) -> None:
    graph = Graph(default_model, served.canvas, torch.float16).to(GPU)
    inputs = example_inputs(8, served.canvas, GPU)
    eager = profile_batches(lambda: graph(*inputs), 50)
    ours = profile_batches(_refill(served, 1)[0].run, 200)
    for name, trace in (("eager", eager), ("served", ours)):
        print(f"\n{name}: {trace.kernels:.0f} kernels, {trace.launches:.1f} launches, {trace.wall_ms:.3f} ms")
    assert ours.launches <= 5
    assert ours.kernels < eager.kernels
    assert eager.launches > 10 * ours.launches
    assert eager.wall_ms >= 1.2 * ours.wall_ms
    assert not ours.blocking_copies


def test_nothing_is_compiled_after_warm_up_and_a_new_shape_would_be_counted(served: Feed, tiny: Model) -> None:
    watch = RecompileWatch()
    with engine_on(served.warm.lanes) as engine:
        load = _Load(engine, served, 48)
        load.run(0.5)
    assert load.done().batches > 50
    assert watch.news() == 0
    graph = Graph(tiny, CANVAS, torch.float16).to(GPU)
    program = build_program(graph, "tiny", 8, CANVAS, GPU, None)
    watch.news()
    program.run(*example_inputs(8, CANVAS, GPU))
    assert watch.news() == 0
    program.run(*example_inputs(4, CANVAS, GPU))
    assert watch.news() > 0


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_resize_on_the_gpu_is_torchvisions_on_the_cpu(interpolation: Interpolation, dtype: str) -> None:
    preprocess, sources = Preprocess(interpolation=interpolation), parity.photographs()
    images = [*sources, *parity.views(sources, 59)]
    theirs = torch.stack([reference_levels(pixels, preprocess) for pixels in images])
    with parity_levels.tf32(dtype == "tf32"):
        inputs = parity_levels.canvases(images, preprocess, GPU)
        ours = resize_levels(*inputs, preprocess, DTYPES[dtype]).cpu()
    apart = (ours.float() - theirs.float()).abs()
    print(f"\n{interpolation} in {dtype}: at most {apart.max():.0f} levels, {apart.mean():.4f} on average")
    assert apart.max() <= parity_levels.LIMITS[interpolation]


# Last, so that a failed capture cannot be behind the failure of another test.
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_no_graph_can_hold_still_serves_and_says_why(compiled: bool) -> None:
    options = replace(OPTIONS, canvas=CANVAS, compile=compiled, lanes=2)
    warm = build_lanes(levels_model(Reading()), options)
    print(f"\n{warm.execution}")
    _, _, reason = warm.execution.partition("no CUDA graph: ")
    assert reason
    pool = SlotPool(8, CANVAS, pinned=True)
    geometry = crop_geometry(CANVAS, CANVAS, Preprocess())
    requests = [Request(b"", "levels", slot, geometry=geometry) for slot in pool.acquire(8)]
    with engine_on(warm.lanes) as engine:
        for level, request in enumerate(requests):
            assert request.slot is not None
            request.slot.pixels.fill(20 * level)
            engine.submit(request)
        found = [int(request.future.result(60).indices[0]) for request in requests]
    assert found == [20 * level for level in range(8)]
