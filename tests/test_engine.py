"""The engine with lanes that need no model.

`EchoLane` answers with what it read in each slot, so a wrong slot or a wrong row shows. It runs in the engine's thread.
`ManualLane` only begins: the test says when a batch is done, so that overlap and order are the test's to choose.
`FreeRunLane` is done after a random while, as a GPU is: for the stress test.
`BrokenLane` raises at the step that it is told to.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.batcher import Batcher
from pipeline.engine import Engine, State, Warm
from pipeline.errors import DeadlineExceeded, Overloaded, Unavailable
from pipeline.lane import ForwardFailed, Lane
from pipeline.request import Batch, Request, Result
from pipeline.slots import Slot, SlotPool
from tests.conftest import Counted

# Far longer than anything here takes, so that a test that reaches it has failed.
LONG_S = 30.0


def number_in(slot: Slot) -> NDArray[np.int32]:
    """int32 [3]: a view of the slot's pixels, 2 x 2 of them."""
    return slot.pixels.reshape(-1).view(np.int32)


class EchoLane:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.started: list[list[int]] = []

    def start(self, batch: Batch) -> None:
        self.numbers = []
        for request in batch.requests:
            assert request.slot is not None
            self.numbers.append(int(number_in(request.slot)[0]))
            request.release_slot()
        self.started.append(self.numbers)
        batch.stamp("forward_start")
        batch.stamp("forward_end")

    def done(self) -> bool:
        return True

    def run_example(self) -> None:
        pass

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        indices = np.array(self.numbers, np.int32)[:, None]
        return np.ones(indices.shape, np.float32), indices


class ManualLane(EchoLane):
    def __init__(self) -> None:
        super().__init__()
        self.busy = False
        self.may_end = threading.Semaphore(0)

    def start(self, batch: Batch) -> None:
        assert not self.busy, "a lane runs one batch at a time"
        self.busy = True
        super().start(batch)

    def done(self) -> bool:
        return self.may_end.acquire(blocking=False)

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        self.busy = False
        return super().results()

    def end(self) -> None:
        """Let the batch that runs be done."""
        self.may_end.release()


class FreeRunLane(EchoLane):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.busy_until = 0.0

    def start(self, batch: Batch) -> None:
        assert not self.busy_until, "a lane runs one batch at a time"
        super().start(batch)
        self.busy_until = time.monotonic() + self.rng.choice((0.0, 0.0002, 0.002))

    def done(self) -> bool:
        return time.monotonic() >= self.busy_until

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        self.busy_until = 0.0
        return super().results()


class BrokenLane(EchoLane):
    def __init__(self, step: str, error: BaseException, times: int = 1) -> None:
        super().__init__()
        self.step, self.error, self.times = step, error, times

    def fail_at(self, step: str) -> None:
        if step == self.step and self.times:
            self.times -= 1
            raise self.error

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


class Bench:
    """An engine on given lanes, with slots; requests are known by a number that is written into their slot."""

    def __init__(
        self, *lanes: Lane, batch_size: int = 8, max_wait_ms: float = 0.0, slots: int = 64, shares: bool = False
    ) -> None:
        self.pool = SlotPool(slots, 2)
        self.engine = Engine(lambda: Warm(lanes, "fake", shares=shares), Batcher(batch_size, max_wait_ms))

    def start(self) -> None:
        self.engine.start()
        self.engine.ready.result(LONG_S)

    def request(self, number: int = 0, deadline: float = math.inf) -> Request:
        slot = self.pool.acquire()[0]
        number_in(slot)[0] = number
        return Request(b"", "", slot, deadline)

    def submit(self, *numbers: int) -> list[Future[Result]]:
        requests = [self.request(number) for number in numbers]
        for request in requests:
            self.engine.submit(request)
        return [request.future for request in requests]


Start = Callable[..., Bench]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an engine on the given lanes; all are stopped in the end."""
    benches: list[Bench] = []

    def begin(*lanes: Lane, **settings: float) -> Bench:
        bench = Bench(*lanes, **settings)  # type: ignore[arg-type]
        bench.start()
        benches.append(bench)
        return bench

    yield begin
    for bench in benches:
        bench.engine.stop()


def answers(futures: list[Future[Result]]) -> list[int]:
    return [int(future.result(LONG_S).indices[0]) for future in futures]


def state_of(bench: Bench) -> State:
    return bench.engine.state


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def test_answers_each_with_its_own(start: Start) -> None:
    bench = start(EchoLane())
    assert answers(bench.submit(*range(30))) == list(range(30))
    assert bench.pool.in_use == 0


def test_one_request_is_a_batch(start: Start) -> None:
    bench = start(EchoLane())
    assert bench.submit(7)[0].result(LONG_S).batch_fill == 1
    assert bench.engine.batcher.seconds_per_batch >= 0.0
    assert bench.engine.execution == "fake"


def test_gathers_while_the_lane_is_busy(start: Start) -> None:
    lane = ManualLane()
    bench = start(lane)
    first = bench.submit(0)
    eventually(lambda: lane.busy)
    rest = bench.submit(*range(1, 11))
    time.sleep(0.02)
    assert lane.started == [[0]]
    for _ in range(3):
        lane.end()
    assert answers(first + rest) == list(range(11))
    assert lane.started == [[0], list(range(1, 9)), [9, 10]]
    assert [future.result().batch_fill for future in first + rest] == [1] + [8] * 8 + [2] * 2


def test_no_lane_is_idle_while_something_is_queued(start: Start) -> None:
    lanes = [ManualLane() for _ in range(3)]
    bench = start(*lanes)
    # Nobody waits for a batch to fill: each takes what is there.
    futures = []
    for number in range(3):
        futures += bench.submit(number)
        eventually(lambda: sum(lane.busy for lane in lanes) == len(futures))  # noqa: B023
    assert sorted(lane.started for lane in lanes) == [[[0]], [[1]], [[2]]]
    futures += bench.submit(3, 4)
    time.sleep(0.02)
    assert len(bench.engine.batcher) == 2
    last = next(lane for lane in lanes if lane.started == [[2]])
    last.end()
    eventually(lambda: last.started == [[2], [3, 4]])
    assert futures[2].done()
    assert not futures[0].done()
    for lane in lanes:
        lane.end()
    assert answers(futures) == list(range(5))


def test_lanes_overlap_and_end_in_any_order(start: Start) -> None:
    lanes = [ManualLane(), ManualLane()]
    bench = start(*lanes, batch_size=2)
    futures = bench.submit(0, 1, 2, 3)
    eventually(lambda: all(lane.busy for lane in lanes))
    assert bench.pool.in_use == 0, "slots are free once they have been read, not once the batch is done"
    second = next(lane for lane in lanes if 3 in lane.numbers)
    ends_first = list(second.numbers)
    second.end()
    eventually(lambda: all(futures[number].done() for number in ends_first))
    assert not futures[0].done()
    (set(lanes) - {second}).pop().end()
    assert answers(futures) == [0, 1, 2, 3]


def test_a_full_batch_does_not_wait(start: Start) -> None:
    bench = start(EchoLane(), batch_size=4, max_wait_ms=1e4 * LONG_S)
    assert answers(bench.submit(0, 1, 2, 3)) == [0, 1, 2, 3]


def test_a_lane_is_polled_while_a_batch_waits_to_fill(start: Start) -> None:
    lanes = [ManualLane(), ManualLane()]
    bench = start(*lanes, batch_size=2, max_wait_ms=1e4 * LONG_S)
    full = bench.submit(0, 1)
    eventually(lambda: any(lane.busy for lane in lanes))
    waiting = bench.submit(2)
    next(lane for lane in lanes if lane.busy).end()
    assert answers(full) == [0, 1]
    waiting += bench.submit(3)
    for lane in lanes:
        lane.end()
    assert answers(waiting) == [2, 3]


def test_the_dead_never_reach_a_lane(start: Start, dropped: Callable[[str, str], Counted]) -> None:
    lane = ManualLane()
    bench, cancelled, expired = start(lane), dropped("batch", "cancelled"), dropped("batch", "expired")
    bench.submit(0)
    eventually(lambda: lane.busy)
    leaves, late, stays = bench.request(1), bench.request(2, deadline=time.monotonic() + 0.01), bench.request(3)
    for request in (leaves, late, stays):
        bench.engine.submit(request)
    assert leaves.future.cancel()
    eventually(late.expired)
    for _ in range(2):
        lane.end()
    assert answers([stays.future]) == [3]
    assert lane.started == [[0], [3]]
    assert (cancelled(), expired()) == (1, 1)
    assert bench.pool.in_use == 0
    with pytest.raises(CancelledError):
        leaves.future.result(0)
    with pytest.raises(DeadlineExceeded):
        late.future.result(0)


def failed_forward(cause: Exception) -> ForwardFailed:
    failure = ForwardFailed(str(cause))
    failure.__cause__ = cause
    return failure


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("start", RuntimeError("out of memory")),
        ("started", RuntimeError("out of memory")),
        ("done", failed_forward(RuntimeError("out of memory"))),
    ],
)
def test_a_batch_that_fails_takes_no_other_with_it(
    start: Start, step: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench = start(BrokenLane(step, error))
    for future in bench.submit(0):
        with pytest.raises(RuntimeError, match="out of memory"):
            future.result(LONG_S)
    assert answers(bench.submit(1, 2)) == [1, 2]
    assert bench.pool.in_use == 0
    assert "a batch of 1 failed" in caplog.text


@pytest.mark.parametrize(("shares", "batches"), [(True, [[1, 2], [3, 4]]), (False, [[1, 2, 3, 4]])])
def test_what_is_queued_is_shared_out_where_that_is_less_work(shares: bool, batches: list[list[int]]) -> None:
    busy, free = ManualLane(), ManualLane()
    bench = Bench(busy, free, shares=shares)
    requests = [bench.request(number) for number in range(1, 5)]
    bench.start()
    bench.engine.submit(*requests)
    eventually(lambda: sum(map(len, busy.started + free.started)) == 4)
    assert busy.started + free.started == batches
    for lane in (busy, free):
        lane.end()
    assert answers([request.future for request in requests]) == [1, 2, 3, 4]
    bench.engine.stop()


@pytest.mark.parametrize("step", ["done", "results", "a row too few"])
def test_an_engine_whose_device_fails_dies_and_leaves_nobody_waiting(step: str) -> None:
    # Two images a batch, held back until there are four: what failed, what runs on another lane, and what is queued.
    running, broken = ManualLane(), BrokenLane(step, RuntimeError("device lost"))
    bench = Bench(running, broken, batch_size=2, max_wait_ms=1e4 * LONG_S)
    died = threading.Event()
    bench.engine.on_death = died.set
    bench.start()
    futures = bench.submit(0, 1)
    eventually(lambda: running.busy or any(future.done() for future in futures))
    futures += bench.submit(2, 3)
    assert died.wait(LONG_S)
    for future in futures:
        with pytest.raises(Unavailable, match="died"):
            future.result(LONG_S)
    assert bench.engine.state is State.STOPPED
    assert bench.pool.in_use == 0
    with pytest.raises(Unavailable, match="stopped"):
        bench.submit(4)
    assert bench.pool.in_use == 0
    bench.engine.stop()


def test_a_lost_context_ends_the_engine() -> None:
    bench = Bench(BrokenLane("start", torch.AcceleratorError("illegal memory access")))
    bench.start()
    (future,) = bench.submit(0)
    with pytest.raises(Unavailable):
        future.result(LONG_S)
    eventually(lambda: bench.pool.in_use == 0)
    bench.engine.stop()


def test_stop_answers_what_is_queued(start: Start) -> None:
    lane = ManualLane()
    bench = start(lane, batch_size=2)
    futures = bench.submit(*range(5))
    stopping = threading.Thread(target=bench.engine.stop)
    stopping.start()
    eventually(lambda: bench.engine.state is State.DRAINING)
    for _ in range(3):
        lane.end()
    stopping.join(LONG_S)
    assert bench.engine.state is State.STOPPED
    assert answers(futures) == list(range(5))
    assert bench.pool.in_use == 0


def test_stop_gives_up_on_a_lane_that_hangs() -> None:
    lane = ManualLane()
    bench = Bench(lane, batch_size=1)
    bench.start()
    running, queued = bench.submit(0, 1)
    eventually(lambda: lane.busy)
    bench.engine.stop(timeout_s=0.05)
    with pytest.raises(Unavailable, match="stopped"):
        queued.result(0)
    assert not running.done()
    lane.end()
    assert answers([running]) == [0]


def test_submit_by_state() -> None:
    may_warm_up = threading.Event()
    bench = Bench()

    def warm_up() -> Warm:
        assert may_warm_up.wait(LONG_S)
        return Warm([EchoLane()], "")

    bench.engine = Engine(warm_up, Batcher(8))

    def refused(words: str) -> None:
        request = bench.request()
        with pytest.raises(Unavailable, match=words):
            bench.engine.submit(request)
        assert bench.pool.in_use == 0
        assert request.slot is None

    refused("starting")
    bench.engine.start()
    refused("starting")
    may_warm_up.set()
    bench.engine.ready.result(LONG_S)
    assert state_of(bench) is State.READY
    assert answers(bench.submit(1)) == [1]
    bench.engine.drain()
    assert state_of(bench) is State.DRAINING
    assert answers(bench.submit(2)) == [2], "what was admitted before the drain is still answered"
    bench.engine.stop()
    refused("stopped")


def test_a_warm_up_that_fails_tells_who_waits() -> None:
    def warm_up() -> Warm:
        raise RuntimeError("no such device")

    bench = Bench()
    bench.engine = Engine(warm_up, Batcher(8))
    bench.engine.start()
    with pytest.raises(RuntimeError, match="no such device"):
        bench.engine.ready.result(LONG_S)
    with pytest.raises(Unavailable, match="stopped"):
        bench.submit(0)
    bench.engine.stop()


def test_warm_up_and_lanes_share_one_thread(start: Start) -> None:
    threads = []

    class ThreadLane(EchoLane):
        def start(self, batch: Batch) -> None:
            threads.append(threading.get_ident())
            assert torch.is_inference_mode_enabled()
            super().start(batch)

    def warm_up() -> Warm:
        threads.append(threading.get_ident())
        return Warm([ThreadLane()], "")

    bench = Bench()
    bench.engine = Engine(warm_up, Batcher(8))
    bench.start()
    answers(bench.submit(0, 1))
    bench.engine.stop()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_an_idle_engine_sleeps(start: Start) -> None:
    bench = start(EchoLane())
    answers(bench.submit(0))
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("lanes", [1, 3])
def test_stress(lanes: int) -> None:
    """Callers that cancel and expire at random: each future ends once, with its own answer, and no slot is lost."""
    callers, each = 6, 150
    bench = Bench(*(FreeRunLane(seed) for seed in range(lanes)), slots=24)
    bench.start()

    def call(seed: int) -> dict[str, int]:
        rng, ends, mine = random.Random(seed), dict.fromkeys(("answered", "cancelled", "expired", "refused"), 0), []
        for number in range(seed * each, (seed + 1) * each):
            deadline = time.monotonic() + rng.choice((0.0, 0.001, LONG_S, LONG_S, LONG_S))
            try:
                request = bench.request(number, deadline=deadline)
            except Overloaded:
                ends["refused"] += 1
                time.sleep(0.001)
                continue
            resolved: list[Future[Result]] = []
            request.future.add_done_callback(resolved.append)
            mine.append((number, request.future, resolved))
            bench.engine.submit(request)
            if rng.random() < 0.2:
                time.sleep(rng.random() * 0.001)
                request.future.cancel()
        for number, future, _ in mine:
            try:
                assert future.result(LONG_S).indices[0] == number
                ends["answered"] += 1
            except CancelledError:
                ends["cancelled"] += 1
            except DeadlineExceeded:
                ends["expired"] += 1
        time.sleep(0.01)
        # Callbacks run just after the result can be seen.
        assert all(resolved == [future] for _, future, resolved in mine)
        return ends

    with ThreadPoolExecutor(callers) as pool:
        ends = list(pool.map(call, range(callers)))
    bench.engine.stop()
    total = {end: sum(one[end] for one in ends) for end in ends[0]}
    assert sum(total.values()) == callers * each
    assert all(total[end] for end in ("answered", "cancelled", "expired")), f"{total}: the stress tests too little"
    assert bench.pool.in_use == 0
    assert len(bench.pool.acquire(24)) == 24


def test_callers_that_meet_a_stopping_engine_are_all_answered() -> None:
    def call(bench: Bench, futures: list[Future[Result]]) -> None:
        with suppress(Unavailable):
            while bench.pool.in_use < len(bench.pool.slots):
                futures += bench.submit(len(futures))

    for _ in range(30):
        bench, futures = Bench(EchoLane(), slots=1000), list[Future[Result]]()
        bench.start()
        caller = threading.Thread(target=call, args=(bench, futures))
        caller.start()
        while len(futures) < 3:
            time.sleep(0.0001)
        bench.engine.stop()
        caller.join(LONG_S)
        assert answers(futures) == list(range(len(futures)))
        assert bench.pool.in_use == 0
