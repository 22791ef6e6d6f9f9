"""Frontends and engines over shared slots, in one process: real sockets, blocks, queues and engines' threads.

The test's own thread is the frontends' event loop: it submits, cancels, takes replies and frees slots. What a
supervisor would do, `Rig` does by hand. Slots that are given back are overwritten at once: whoever reads one too late
answers wrongly.

`LateLane` answers with the number that it reads in each slot, and reads only when its batch ends, as a GPU may.
`ManualLane` is one whose batch ends when the test says so.
`FaultyLane` raises once, at the step that it is told to.
"""

import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import zmq
from numpy.typing import NDArray

from pipeline import wire
from pipeline.arrivals import ArrivalQueue
from pipeline.block import SharedBlock
from pipeline.engine import Engine, Warm
from pipeline.errors import CorruptImage, DeadlineExceeded, NotAnImage, Overloaded, PipelineError, Unavailable
from pipeline.headers import Limits
from pipeline.info import ModelInfo
from pipeline.lane import Lane
from pipeline.options import MAX_TOP_K
from pipeline.pipes import make_pipe
from pipeline.preprocess import Preprocess
from pipeline.remote import RemotePipeline
from pipeline.request import Batch, Request, Result
from pipeline.shared import Layout, StatusPage, anonymous_file
from pipeline.slots import Slot, SlotPool
from pipeline.wire import Descriptor, EngineId, Outcome, Reply, Sender
from tests.conftest import Counted
from tests.slow_model import solid

LONG_S = 30.0
SLOTS, SIDE, BATCH = 12, 8, 4
FRONTENDS, ENGINES = 2, 2
FREED = -1
INFO = ModelInfo(
    name="numbers",
    version="0",
    labels=("the number",),
    preprocess=Preprocess(resize=SIDE, crop=(SIDE, SIDE)),
    activation="softmax",
    device="cpu",
    dtype="fp32",
    batch_size=BATCH,
    lanes=1,
    canvas=SIDE,
)


class LateLane:
    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.error: BaseException | None = None
        self.batch: Batch | None = None
        self.ends_at = 0.0
        self.started: list[list[int]] = []

    def start(self, batch: Batch) -> None:
        if self.error is not None:
            raise self.error
        self.batch = batch
        self.started.append(numbers_of(batch))
        batch.stamp("forward_start")
        self.ends_at = time.monotonic() + self.rng.choice((0.0, 0.0002, 0.002))

    def done(self) -> bool:
        return time.monotonic() >= self.ends_at

    def run_example(self) -> None:
        pass

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        assert self.batch is not None
        indices = np.array(numbers_of(self.batch), np.int32)[:, None]
        for request in self.batch.requests:
            request.release_slot()
        self.batch.stamp("forward_end")
        self.batch = None
        return np.ones(indices.shape, np.float32), indices


class ManualLane(LateLane):
    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Semaphore(0)

    def done(self) -> bool:
        return self.may_end.acquire(blocking=False)


class FaultyLane(LateLane):
    def __init__(self, step: str, error: BaseException) -> None:
        super().__init__()
        self.step, self.fault = step, error

    def fail_at(self, step: str) -> None:
        if step == self.step:
            self.step = ""
            raise self.fault

    def start(self, batch: Batch) -> None:
        self.fail_at("start")
        super().start(batch)
        self.fail_at("started")

    def done(self) -> bool:
        self.fail_at("done")
        return super().done()

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        self.fail_at("results")
        scores, indices = super().results()
        return (scores[:-1], indices[:-1]) if self.step == "a row too few" else (scores, indices)


def numbers_of(batch: Batch) -> list[int]:
    return [int(request.pixels.view(torch.int32)[0]) for request in batch.requests]


def write(slot: Slot, number: int) -> None:
    slot.pixels.reshape(-1).view(np.int32)[:] = number


@dataclass(eq=False)
class RunningEngine:
    """An engine's process, as a thread."""

    rig: "Rig"
    identity: EngineId
    lanes: tuple[Lane, ...]
    idle: list[Sender] = field(default_factory=list)

    def __post_init__(self) -> None:
        address = wire.engine_address(self.rig.base, self.identity)
        self.died = threading.Event()
        self.queue = ArrivalQueue(
            self.identity,
            self.rig.descriptors[self.identity.engine].reader,
            wire.listener(zmq.PULL, address),
            [SharedBlock(fd, self.rig.layout) for fd in self.rig.blocks],
            self.rig.page,
            [pipe.writer for pipe in self.rig.replies],
            batch_size=BATCH,
            on_order=lambda message: self.queue.forget(Sender(*message)),
            on_idle=self.idle.append,
        )
        self.engine = Engine(lambda: Warm(self.lanes, "fake"), self.queue)
        self.engine.on_death = self.died.set
        self.engine.start()
        self.engine.ready.result(LONG_S)
        self._orders = self.rig.connected(address)

    def forget(self, sender: Sender) -> None:
        """As the supervisor's order."""
        self._orders.send(bytes(sender))


class Rig:
    """A supervisor's memory, two frontends, and the engines that a test starts."""

    def __init__(self, *, skip_decode: bool = True, info: ModelInfo = INFO) -> None:
        self.base = wire.new_base()
        self.info = info
        self.layout = Layout(SLOTS, info.canvas)
        self.blocks = [anonymous_file("test") for _ in range(FRONTENDS)]
        for fd in self.blocks:
            self.layout.allocate(fd)
        self.page_fd = anonymous_file("test-status")
        self.page = StatusPage(self.page_fd, FRONTENDS, ENGINES)
        self.skip_decode = skip_decode
        self.engines: list[RunningEngine] = []
        self.frontends: list[RemotePipeline] = []
        self._living: dict[int, RemotePipeline] = {}
        self.descriptors = [make_pipe() for _ in range(ENGINES)]
        self.replies = [make_pipe() for _ in range(FRONTENDS)]
        self._others: list[zmq.Socket[Any]] = []
        for index in range(FRONTENDS):
            self.add_frontend(Sender(index, 0))

    def add_frontend(self, sender: Sender) -> RemotePipeline:
        frontend = RemotePipeline(
            self.blocks[sender.frontend],
            StatusPage(self.page_fd, FRONTENDS, ENGINES),
            sender,
            self.replies[sender.frontend].reader,
            [pipe.writer for pipe in self.descriptors],
            limits=Limits(),
            decode_threads=2,
            skip_decode=self.skip_decode,
        )
        frontend.learn(self.info, self.layout)
        self.frontends.append(frontend)
        self._living[sender.frontend] = frontend
        return frontend

    def start_engine(self, index: int, *lanes: Lane, incarnation: int = 0) -> RunningEngine:
        engine = RunningEngine(self, EngineId(index, incarnation), lanes)
        self.engines.append(engine)
        return engine

    def connected(self, address: str) -> "zmq.Socket[bytes]":
        """A socket of somebody who sends there."""
        socket = wire.caller(zmq.PUSH, address)
        self._others.append(socket)
        return socket

    def use(self, *engines: RunningEngine) -> None:
        """As the supervisor's news."""
        for frontend in self.frontends:
            frontend.use([engine.identity for engine in engines])

    def submit(self, number: int, frontend: int = 0, **fields: Any) -> Request:
        pipeline = self.frontends[frontend]
        request = Request(b"", "", pipeline.slots.acquire()[0], **fields)
        assert request.slot is not None
        write(request.slot, number)
        pipeline.submit(request)
        return request

    def pump(self, wait_s: float = 0.001) -> None:
        """One turn of the frontends' event loops."""
        select.select([pipe.reader for pipe in self.replies], [], [], wait_s)
        for frontend in self._living.values():
            frontend.take_replies()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            self.pump()

    def answers(self, requests: list[Request]) -> list[int]:
        self.until(lambda: all(request.future.done() for request in requests))
        return [int(request.future.result(0).indices[0]) for request in requests]

    def assert_all_free(self) -> None:
        for frontend in self.frontends:
            assert frontend.slots.in_use == 0
        assert self.page.in_flight.sum() == 0.0

    def close(self) -> None:
        for engine in self.engines:
            for lane in engine.lanes:
                if isinstance(lane, ManualLane):
                    lane.may_end.release(100)
            engine.engine.stop()
        zmq.Context.instance().destroy(linger=0)
        for frontend in self.frontends:
            frontend.stop()
        for fd in (*self.blocks, self.page_fd):
            os.close(fd)
        for pipe in (*self.descriptors, *self.replies):
            pipe.close()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """Nothing is decoded: the number to be answered is written into the slot."""
    yield from _rig(monkeypatch, skip_decode=True)


@pytest.fixture
def decoding_rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    yield from _rig(monkeypatch, skip_decode=False)


def _rig(monkeypatch: pytest.MonkeyPatch, *, skip_decode: bool) -> Iterator[Rig]:
    release = SlotPool.release

    def overwrite_and_release(pool: SlotPool, slot: Slot) -> None:
        write(slot, FREED)
        release(pool, slot)

    monkeypatch.setattr(SlotPool, "release", overwrite_and_release)
    rig = Rig(skip_decode=skip_decode)
    try:
        yield rig
    finally:
        rig.close()


def test_a_new_frontend_throws_away_replies_to_its_predecessor() -> None:
    """Or its event loop would be woken for them without end, until it hears of an engine."""
    fds = [anonymous_file(name) for name in ("frontend", "status")]
    replies = make_pipe()
    pipeline = RemotePipeline(
        fds[0], StatusPage(fds[1], 1, 1), Sender(0, 1), replies.reader, [], limits=Limits(), decode_threads=1
    )
    replies.writer.send(bytes(44))
    pipeline.take_replies()
    with pytest.raises(BlockingIOError):
        replies.reader.recv(1)
    pipeline.stop()
    replies.close()
    for fd in fds:
        os.close(fd)


def test_round_trip(rig: Rig) -> None:
    lane = LateLane()
    rig.use(rig.start_engine(0, lane))
    requests = [rig.submit(number, frontend=number % 2) for number in range(2 * SLOTS)]
    assert rig.answers(requests) == list(range(2 * SLOTS))
    assert {result(request).batch_fill for request in requests} <= set(range(1, BATCH + 1))
    stamps = requests[0].stamps
    assert 0 < stamps.queued <= stamps.batched <= stamps.forward_start <= stamps.forward_end <= time.monotonic_ns()
    assert result(requests[0]).scores.shape == (1,), "a model of one class has one score"
    assert rig.page.seconds_per_batch[0] > 0
    rig.assert_all_free()


def result(request: Request) -> Result:
    return request.future.result(0)


def test_decoded_pixels_arrive(decoding_rig: Rig) -> None:
    rig = decoding_rig
    rig.use(rig.start_engine(0, LateLane()))
    requests = [decoded(rig, solid(level)) for level in (0, 7, 200)]
    assert rig.answers(requests) == [level * 0x01010101 - (level >= 128) * 2**32 for level in (0, 7, 200)]
    rig.assert_all_free()


def decoded(rig: Rig, image: bytes) -> Request:
    request = Request(image, "", rig.frontends[0].slots.acquire()[0])
    rig.frontends[0].submit(request)
    return request


def test_images_that_cannot_be_decoded_reach_no_engine(decoding_rig: Rig) -> None:
    rig, lane = decoding_rig, LateLane()
    rig.use(rig.start_engine(0, lane))
    text, cut = decoded(rig, b"some text"), decoded(rig, solid(9)[:-20])
    rig.until(lambda: text.future.done() and cut.future.done())
    assert isinstance(text.future.exception(), NotAnImage)
    assert isinstance(cut.future.exception(), CorruptImage)
    assert not lane.started
    rig.assert_all_free()


def test_the_dead_never_reach_a_lane(rig: Rig, dropped: Callable[[str, str], Counted]) -> None:
    lane = ManualLane()
    rig.use(rig.start_engine(0, lane))
    cancelled, expired = dropped("batch", "cancelled"), dropped("batch", "expired")
    first = rig.submit(0)
    rig.until(lambda: lane.started == [[0]])
    leaves, late, stays = rig.submit(1), rig.submit(2, deadline=time.monotonic() + 0.01), rig.submit(3)
    left = rig.submit(4)
    assert leaves.future.cancel()
    assert left.future.cancel()
    time.sleep(0.02)
    assert rig.frontends[0].slots.in_use == 5, "until the engine has replied, their slots are the engine's"
    lane.may_end.release(2)
    assert rig.answers([first, stays]) == [0, 3]
    rig.until(lambda: rig.frontends[0].slots.in_use == 0)
    assert isinstance(late.future.exception(0), DeadlineExceeded)
    assert lane.started == [[0], [3]]
    assert (cancelled(), expired()) == (2, 1)
    rig.assert_all_free()


def test_cancelled_while_its_batch_runs(rig: Rig) -> None:
    lane = ManualLane()
    rig.use(rig.start_engine(0, lane))
    leaves, stays = rig.submit(0), rig.submit(1)
    rig.until(lambda: sum(map(len, lane.started)) == 2 or len(lane.started) == 1)
    assert leaves.future.cancel()
    lane.may_end.release(2)
    assert rig.answers([stays]) == [1]
    rig.until(lambda: rig.frontends[0].slots.in_use == 0)
    rig.assert_all_free()


def test_cancelled_before_it_was_sent(rig: Rig) -> None:
    """A call that is cancelled after its image was decoded, and before its descriptor was sent."""
    lane = LateLane()
    rig.use(rig.start_engine(0, lane))
    future: Future[Result] = Future()
    future.cancel()
    rig.submit(5, future=future)
    rig.until(lambda: rig.frontends[0].slots.in_use == 0)
    assert not lane.started
    rig.assert_all_free()


def test_a_flag_that_comes_late_does_not_cancel_the_next_image(rig: Rig) -> None:
    """Two threads of a frontend: one about to flag a cancelled image, and one that has sent its slot's next image."""
    rig.use(rig.start_engine(0, LateLane()))
    leaves = rig.submit(1)
    leaves.future.cancel()
    rig.until(lambda: rig.frontends[0].slots.in_use == 0)
    dispatcher, slots = rig.frontends[0]._dispatcher, rig.frontends[0].slots
    assert dispatcher is not None
    generation = int(dispatcher._block.generation[0])
    others = slots.acquire(SLOTS)
    others[0].release()
    lane = ManualLane()
    busy = rig.start_engine(1, lane)
    rig.use(busy)
    first = rig.submit(7)
    assert first.slot is others[0]
    dispatcher._flag_if_cancelled(0, generation, leaves.future)
    lane.may_end.release()
    assert rig.answers([first]) == [7]
    for slot in others[1:]:
        slot.release()
    rig.assert_all_free()


@pytest.mark.parametrize(
    "error", [RuntimeError("no kernel"), torch.OutOfMemoryError("no memory")], ids=lambda error: type(error).__name__
)
@pytest.mark.parametrize("step", ["start", "started"])
def test_a_batch_that_fails_is_the_only_one(rig: Rig, step: str, error: BaseException) -> None:
    lane = FaultyLane(step, error)
    engine = rig.start_engine(0, lane)
    rig.use(engine)
    requests = [rig.submit(number) for number in range(SLOTS)]
    rig.until(lambda: all(request.future.done() for request in requests))
    failed = [request for request in requests if request.future.exception(0)]
    assert 1 <= len(failed) <= BATCH
    assert {type(request.future.exception(0)) for request in failed} == {PipelineError}
    rig.assert_all_free()
    assert rig.answers([rig.submit(50)]) == [50]
    assert not engine.died.is_set()


@pytest.mark.parametrize("step", ["start", "started", "done", "results", "a row too few"])
def test_an_engine_that_dies_fails_what_it_had(rig: Rig, step: str) -> None:
    lost = rig.start_engine(0, FaultyLane(step, torch.AcceleratorError("illegal memory access")))
    rig.use(lost)
    requests = [rig.submit(number, frontend=number % 2) for number in range(SLOTS)]
    leaves = rig.submit(99)
    leaves.future.cancel()
    assert lost.died.wait(LONG_S)
    for _ in range(3):
        rig.pump()
    pending = [request for request in requests if not request.future.done()]
    assert pending, "nothing is given back before the engine has been reaped"
    assert all(request.slot is not None for request in pending)

    rig.use()
    for request in pending:
        with pytest.raises(Unavailable, match="the engine has died"):
            request.future.result(0)
    rig.assert_all_free()
    refused = rig.submit(1)
    with pytest.raises(Unavailable, match="no engine is running"):
        refused.future.result(0)
    with pytest.raises(Unavailable, match="no engine is running"):
        rig.frontends[0].check_serving()

    rig.use(rig.start_engine(0, LateLane(), incarnation=1))
    assert rig.answers([rig.submit(number, frontend=number % 2) for number in range(SLOTS)]) == list(range(SLOTS))
    rig.assert_all_free()


def test_before_the_first_engine(rig: Rig) -> None:
    with pytest.raises(Unavailable, match="the engine is starting"):
        rig.frontends[0].check_serving()
    refused = rig.submit(1)
    with pytest.raises(Unavailable):
        refused.future.result(0)
    assert rig.frontends[0].expected_wait_ms() == 0
    rig.assert_all_free()


def test_replies_of_an_engine_that_was_given_up_are_ignored(rig: Rig) -> None:
    silent = rig.start_engine(0, ManualLane())
    rig.use(silent)
    old = rig.submit(1)
    assert old.slot is not None
    slot = old.slot
    dispatcher = rig.frontends[0]._dispatcher
    assert dispatcher is not None
    generation = int(dispatcher._block.generation[slot.index])
    rig.use()
    assert isinstance(old.future.exception(0), Unavailable)

    lane = ManualLane()
    rig.use(rig.start_engine(1, lane))
    new = rig.submit(2)
    assert new.slot is slot, "the one that was given back last"
    rig.until(lambda: bool(lane.started))
    for outcome in Outcome:
        rig.replies[0].writer.send(wire.pack_replies([Reply(slot.index, generation, outcome, 1)]))
    time.sleep(0.05)
    rig.pump(0.1)
    assert not new.future.done()
    assert new.slot is slot
    lane.may_end.release()
    assert rig.answers([new]) == [2]
    rig.assert_all_free()


def test_what_a_dead_engine_had_not_read_is_not_its_successors(rig: Rig) -> None:
    rig.use(rig.start_engine(1, LateLane()))
    pipeline = rig.frontends[0]
    pipeline.use([EngineId(0, 0)])
    lost = [rig.submit(number) for number in range(3)]
    pipeline.use([])
    assert all(isinstance(request.future.exception(0), Unavailable) for request in lost)
    lane = LateLane()
    pipeline.use([rig.start_engine(0, lane, incarnation=1).identity])
    assert rig.answers([rig.submit(7), rig.submit(8)]) == [7, 8]
    assert sorted(number for batch in lane.started for number in batch) == [7, 8]
    rig.assert_all_free()


def test_the_engine_with_the_fewest_images_gets_the_next(rig: Rig) -> None:
    lanes = [ManualLane(), ManualLane()]
    rig.use(*(rig.start_engine(index, lane) for index, lane in enumerate(lanes)))
    rig.page.in_flight[1, 0] = 4.0  # what another frontend has sent
    requests = [rig.submit(number) for number in range(10)]
    assert rig.page.in_flight.tolist() == [[3.0, 7.0], [4.0, 0.0]]
    rig.page.in_flight[1, 0] = 0.0
    for lane in lanes:
        lane.may_end.release(10)
    assert rig.answers(requests) == list(range(10))
    rig.assert_all_free()


def test_expected_wait(rig: Rig) -> None:
    lanes = [ManualLane(), ManualLane()]
    rig.use(*(rig.start_engine(index, lane) for index, lane in enumerate(lanes)))
    rig.page.seconds_per_batch[:] = 0.1, 0.3
    requests = [rig.submit(number) for number in range(8)]
    rig.page.in_flight[1, 1] = 8.0
    # 16 images in batches of 4 on two engines, 0.2 s each.
    assert rig.frontends[0].expected_wait_ms() == 400
    rig.page.in_flight[1, 1] = 0.0
    for lane in lanes:
        lane.may_end.release(10)
    rig.answers(requests)
    rig.assert_all_free()


def test_a_dead_frontend_is_confirmed_idle_only_once_its_batches_have_ended(rig: Rig) -> None:
    lanes = [ManualLane(), ManualLane()]
    engine = rig.start_engine(0, *lanes)
    rig.use(engine)
    dead, lives = Sender(0, 0), Sender(1, 0)
    lost = rig.submit(0)
    rig.until(lambda: any(lane.started for lane in lanes))
    rig.submit(1)
    rig.until(lambda: all(lane.started for lane in lanes))
    for number in (10, 11):
        rig.submit(number)
    stays = rig.submit(20, frontend=1)
    engine.forget(dead)
    time.sleep(0.2)
    lanes[0].may_end.release(2)
    assert rig.answers([stays]) == [20]
    assert engine.idle == [], "a lane still runs a batch of it"
    lanes[1].may_end.release()
    rig.until(lambda: engine.idle == [dead])
    assert [number for lane in lanes for batch in lane.started for number in batch] == [0, 20, 1]
    for lane in lanes:
        lane.may_end.release(10)

    # What the kernel had held back comes after all.
    descriptor = Descriptor(dead, 0, 0, 99, time.monotonic_ns(), lost.geometry.row())  # type: ignore[union-attr]
    rig.descriptors[0].writer.send(descriptor.pack())
    assert rig.answers([rig.submit(21, frontend=1)]) == [21]
    rig.until(lambda: not len(engine.queue))
    assert sum(len(lane.started) for lane in lanes) == 4, "it has not been begun"

    engine.forget(lives)
    rig.until(lambda: engine.idle == [dead, lives])
    successor = rig.add_frontend(Sender(0, 1))
    successor.use([engine.identity])
    assert rig.page.in_flight[0].sum() == 0.0
    again = Request(b"", "", successor.slots.acquire()[0])
    assert again.slot is not None
    write(again.slot, 33)
    successor.submit(again)
    assert rig.answers([again]) == [33]


def test_no_answer_goes_wrong_whatever_happens(rig: Rig) -> None:
    """Callers that leave, deadlines that pass, engines that die, and slots that are used again at once."""
    rng = random.Random(7)
    engines = [rig.start_engine(index, LateLane(rng), LateLane(rng)) for index in range(ENGINES)]
    rig.use(*engines)
    waiting: list[tuple[int, Request]] = []
    counts = dict.fromkeys(("answered", "cancelled", "expired", "lost"), 0)
    dying: RunningEngine | None = None
    for number in range(3000):
        try:
            deadline = time.monotonic() + rng.choice((0.0, 0.001)) if rng.random() < 0.1 else math.inf
            waiting.append((number, rig.submit(number, frontend=number % 2, deadline=deadline)))
        except Overloaded:
            rig.pump()
        if waiting and rng.random() < 0.2:
            rng.choice(waiting)[1].future.cancel()
        if number % 300 == 299 and dying is None:
            dying = rng.choice(engines)
            for lane in dying.lanes:
                lane.error = torch.AcceleratorError("illegal memory access")  # type: ignore[attr-defined]
        if dying is not None and dying.died.is_set():
            index, dead = dying.identity
            rig.use(engines[1 - index])
            engines[index] = rig.start_engine(index, LateLane(rng), LateLane(rng), incarnation=dead + 1)
            rig.use(*engines)
            dying = None
        if number % 16 == 0:
            rig.pump(0)
            waiting = [each for each in waiting if not settled(*each, counts)]
    if dying is not None:
        rig.use(*(engine for engine in engines if engine is not dying))
    rig.until(lambda: all(frontend.slots.in_use == 0 for frontend in rig.frontends))
    assert all(settled(*each, counts) for each in waiting), "every image has one end"
    assert min(counts.values()) > 0, counts
    assert counts["answered"] > 1000, counts
    rig.assert_all_free()


def settled(number: int, request: Request, counts: dict[str, int]) -> bool:
    future = request.future
    if not future.done():
        return False
    if future.cancelled():
        counts["cancelled"] += 1
    elif isinstance(future.exception(0), DeadlineExceeded):
        counts["expired"] += 1
    elif isinstance(future.exception(0), Unavailable):
        counts["lost"] += 1
    else:
        assert int(future.result(0).indices[0]) == number
        counts["answered"] += 1
    return True


def test_descriptors_travel_unchanged() -> None:
    sent = Descriptor(
        Sender(3, 2**32 - 1), 2**32 - 2, 127, 2**32 - 1, 2**62, (0.5, -1.0, 544.0, 1e-9, 3.25, 7.0), (4, 5, 6)
    )
    assert wire.unpack_descriptor(sent.pack()) == sent


def test_replies_travel_unchanged() -> None:
    sent = [Reply(127, 2**32 - 1, Outcome.FAILED, 512), Reply(0, 1, Outcome.ANSWERED, 1, 2**62, 2**62 + 1, 2**62 + 2)]
    assert list(wire.unpack_replies(wire.pack_replies(sent))) == sent
    assert list(wire.unpack_replies(b"")) == []


@pytest.mark.parametrize(("slots", "canvas"), [(1, 1), (64, 8), (128, 544), (300, 224)])
def test_layout(slots: int, canvas: int) -> None:
    layout = Layout(slots, canvas)
    assert layout.slot_bytes == 3 * canvas * canvas
    assert layout.pixels_at % os.sysconf("SC_PAGESIZE") == 0
    assert layout.pixels_at >= slots * (64 + 8 * MAX_TOP_K)
    assert layout.size >= layout.pixels_at + slots * layout.slot_bytes
    assert layout.size % os.sysconf("SC_PAGESIZE") == 0


def test_two_mappings_of_a_block_are_the_same_memory() -> None:
    layout, fd = Layout(5, 4), anonymous_file("test")
    layout.allocate(fd)
    ours, theirs = SharedBlock(fd, layout), SharedBlock(fd, layout)
    os.close(fd)
    for name in ("deadline", "generation", "cancelled"):
        getattr(ours, name)[:] = np.arange(5)
    ours.scores[:] = np.arange(5 * MAX_TOP_K).reshape(5, MAX_TOP_K)
    ours.indices[:] = 7
    ours.pixels[:] = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1)
    for name in ("deadline", "generation", "cancelled"):
        assert getattr(theirs, name).tolist() == list(range(5)), name
    assert theirs.scores[4, -1] == 5 * MAX_TOP_K - 1
    assert (theirs.indices == 7).all()
    assert theirs.pixels[:, 0, 0, 0].tolist() == list(range(5))
