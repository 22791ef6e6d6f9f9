"""What the batcher hands out and when, and what becomes of requests that nobody waits for any more."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from pipeline.batcher import Batcher
from pipeline.errors import DeadlineExceeded, Unavailable
from pipeline.request import Request
from pipeline.slots import SlotPool
from tests.conftest import Counted
from tests.serving import eventually

# Far longer than anything here takes, so that a test that reaches it has failed.
LONG_S = 30.0


class Source:
    """Makes requests that hold a slot each. `pool.in_use` tells which were given back; a second time would raise."""

    def __init__(self, slots: int = 64) -> None:
        self.pool = SlotPool(slots, 2)

    def __call__(self, deadline: float = math.inf) -> Request:
        return Request(b"", "", self.pool.acquire()[0], deadline)


@pytest.fixture
def source() -> Source:
    return Source()


def queued(batcher: Batcher, source: Source, count: int) -> list[Request]:
    requests = [source() for _ in range(count)]
    for request in requests:
        assert batcher.put(request)
    return requests


def taken(batcher: Batcher, timeout_s: float | None = LONG_S) -> list[Request]:
    batch = batcher.take(timeout_s)
    return list(batch.requests) if batch else []


def test_takes_what_is_queued_at_once(source: Source) -> None:
    batcher = Batcher(8)
    requests = queued(batcher, source, 3)
    started = time.monotonic()
    assert taken(batcher) == requests
    assert time.monotonic() - started < 1.0
    assert len(batcher) == 0


def test_one_is_enough(source: Source) -> None:
    batcher = Batcher(8)
    assert taken(batcher, 0.0) == []
    requests = queued(batcher, source, 1)
    assert taken(batcher) == requests


def test_full_batches_in_order(source: Source) -> None:
    batcher = Batcher(8)
    requests = queued(batcher, source, 20)
    assert [taken(batcher), taken(batcher), taken(batcher)] == [requests[:8], requests[8:16], requests[16:]]


@pytest.mark.parametrize(
    ("count", "lanes", "sizes"),
    [
        (4, 1, [4]),
        (4, 2, [2, 2]),
        (5, 2, [3, 2]),
        (1, 2, [1]),
        (3, 4, [1, 1, 1]),
        (20, 2, [8, 8, 4]),
        (16, 3, [6, 5, 5]),
    ],
)
def test_what_is_queued_is_shared_out_to_idle_lanes(source: Source, count: int, lanes: int, sizes: list[int]) -> None:
    batcher = Batcher(8)
    requests = queued(batcher, source, count)
    batches = []
    for idle in (*range(lanes, 0, -1), 1):
        batch = batcher.take(0.0, idle)
        batches += [list(batch.requests)] if batch else []
    assert [len(batch) for batch in batches] == sizes
    assert [request for batch in batches for request in batch] == requests


def test_take_wakes_for_a_request(source: Source) -> None:
    batcher = Batcher(8)
    with ThreadPoolExecutor(1) as engine:
        batch = engine.submit(taken, batcher, None)
        time.sleep(0.05)
        assert not batch.done()
        requests = queued(batcher, source, 1)
        assert batch.result(LONG_S) == requests


def test_take_gives_up_after_its_timeout() -> None:
    started = time.monotonic()
    assert Batcher(8).take(0.05) is None
    assert 0.05 <= time.monotonic() - started < 1.0


def test_what_is_taken_is_stamped_and_can_no_longer_be_cancelled(source: Source) -> None:
    batcher = Batcher(8)
    queued(batcher, source, 2)
    for request in taken(batcher):
        assert 0 < request.stamps.queued <= request.stamps.batched <= time.monotonic_ns()
        assert request.future.running()
        assert not request.future.cancel()
    assert source.pool.in_use == 2, "the slots are the lane's now"


def test_waits_for_the_batch_to_fill(source: Source) -> None:
    batcher = Batcher(4, max_wait_ms=1e4 * LONG_S)
    with ThreadPoolExecutor(1) as engine:
        batch = engine.submit(taken, batcher, None)
        requests = queued(batcher, source, 3)
        time.sleep(0.05)
        assert not batch.done()
        requests += queued(batcher, source, 1)
        assert batch.result(LONG_S) == requests


def test_waits_no_longer_than_it_may(source: Source) -> None:
    batcher = Batcher(4, max_wait_ms=100)
    started = time.monotonic()
    requests = queued(batcher, source, 3)
    assert taken(batcher, None) == requests
    assert 0.1 <= time.monotonic() - started < 2.0


def test_the_wait_counts_from_the_oldest_request(source: Source) -> None:
    batcher = Batcher(4, max_wait_ms=100)
    requests = queued(batcher, source, 1)
    time.sleep(0.15)
    requests += queued(batcher, source, 1)
    started = time.monotonic()
    assert taken(batcher, None) == requests
    assert time.monotonic() - started < 0.1


def test_the_wait_does_not_hold_an_engine_that_has_other_work(source: Source) -> None:
    batcher = Batcher(4, max_wait_ms=1e4 * LONG_S)
    queued(batcher, source, 1)
    started = time.monotonic()
    assert batcher.take(0.01) is None
    assert time.monotonic() - started < 1.0
    assert len(batcher) == 1


def test_closing_ends_the_wait(source: Source) -> None:
    batcher = Batcher(4, max_wait_ms=1e4 * LONG_S)
    with ThreadPoolExecutor(1) as engine:
        batch = engine.submit(taken, batcher, None)
        requests = queued(batcher, source, 1)
        time.sleep(0.02)
        batcher.close()
        assert batch.result(LONG_S) == requests


def test_cancelled_is_dropped(source: Source, dropped: Callable[[str, str], Counted]) -> None:
    batcher, count = Batcher(8), dropped("batch", "cancelled")
    first, second, third = queued(batcher, source, 3)
    assert second.future.cancel()
    assert taken(batcher) == [first, third]
    assert source.pool.in_use == 2
    assert second.slot is None
    assert count() == 1
    with pytest.raises(CancelledError):
        second.future.result(0)


def test_expired_is_dropped(source: Source, dropped: Callable[[str, str], Counted]) -> None:
    batcher, count = Batcher(8), dropped("batch", "expired")
    late, live = source(deadline=time.monotonic() - 0.001), source(deadline=time.monotonic() + LONG_S)
    for request in (late, live):
        batcher.put(request)
    assert taken(batcher) == [live]
    assert source.pool.in_use == 1
    assert count() == 1
    with pytest.raises(DeadlineExceeded, match="before batch"):
        late.future.result(0)


def test_a_batch_of_the_dead_is_none(source: Source) -> None:
    batcher = Batcher(2)
    requests = queued(batcher, source, 3)
    for request in requests[:2]:
        request.future.cancel()
    assert batcher.take(LONG_S) is None
    assert taken(batcher) == requests[2:]
    assert source.pool.in_use == 1


def test_cancelled_between_check_and_claim(
    source: Source, dropped: Callable[[str, str], Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    batcher, count = Batcher(8), dropped("batch", "cancelled")
    queued(batcher, source, 1)
    # The last thing that the check looks at: from here on it takes the request for alive.
    monkeypatch.setattr(Request, "expired", lambda self: not self.future.cancel())
    assert batcher.take(LONG_S) is None
    assert count() == 1
    assert source.pool.in_use == 0


def test_closed_is_finished_once_it_is_empty(source: Source) -> None:
    batcher = Batcher(2)
    requests = queued(batcher, source, 3)
    batcher.close()
    assert not batcher.finished
    assert taken(batcher) + taken(batcher) == requests
    assert batcher.finished
    assert batcher.take(None) is None


def test_closed_takes_nothing_more(source: Source) -> None:
    batcher = Batcher(2)
    batcher.close()
    request = source()
    assert not batcher.put(request)
    assert request.slot is not None, "the slot stays with whoever could not queue it"
    assert batcher.finished


def test_close_wakes_a_waiting_engine() -> None:
    batcher = Batcher(2)
    with ThreadPoolExecutor(1) as engine:
        batch = engine.submit(batcher.take, None)
        time.sleep(0.02)
        batcher.close()
        assert batch.result(LONG_S) is None


def test_fail_all_answers_everybody_and_frees_the_slots(source: Source) -> None:
    batcher = Batcher(2)
    requests = queued(batcher, source, 5)
    requests[1].future.cancel()
    batcher.fail_all(Unavailable("gone"))
    assert source.pool.in_use == 0
    for request in requests[:1] + requests[2:]:
        with pytest.raises(Unavailable, match="gone"):
            request.future.result(0)
    assert requests[1].future.cancelled()


def test_many_producers_lose_nothing() -> None:
    producers, each = 6, 200
    batcher, source = Batcher(8), Source(producers * each)
    start = threading.Barrier(producers)

    def produce(_: int) -> list[Request]:
        start.wait()
        return queued(batcher, source, each)

    found: list[Request] = []
    with ThreadPoolExecutor(producers) as workers:
        made = workers.map(produce, range(producers))
        while len(found) < producers * each:
            batch = taken(batcher)
            assert 1 <= len(batch) <= 8
            found += batch
    place = {id(request): index for index, request in enumerate(found)}
    assert len(place) == producers * each
    for requests in made:
        places = [place[id(request)] for request in requests]
        assert places == sorted(places), "requests of one producer came out of order"


def test_it_knows_since_when_its_engine_is_at_work(source: Source) -> None:
    batcher = Batcher(2)
    assert batcher.begun_ns == 0
    batcher.beat(5)
    assert taken(batcher, 0.0) == []
    assert batcher.begun_ns == 5, "a batch runs on a lane"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(taken, batcher, None)
        assert eventually(lambda: batcher.begun_ns == 0)
        began = time.monotonic_ns()
        requests = queued(batcher, source, 1)
        assert waiting.result(LONG_S) == requests
    assert began <= batcher.begun_ns <= time.monotonic_ns()
