"""Slots: handed out all or none, given back once, and two views of one memory."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client import REGISTRY

from pipeline.errors import Overloaded
from pipeline.slots import Slot, SlotPool


def test_both_views_are_the_same_memory() -> None:
    pool = SlotPool(2, 4)
    slot = pool.acquire()[0]
    slot.pixels[1, 2] = (10, 20, 30)
    assert slot.flat.shape == (48,)
    assert slot.flat[18:21].tolist() == [10, 20, 30]
    assert pool.block.sum() == 60
    assert pool.slot_bytes == 48


def test_slots_do_not_overlap() -> None:
    pool = SlotPool(3, 2)
    for slot in pool.acquire(3):
        slot.pixels[:] = slot.index + 1
    assert pool.block.flatten(1).sum(dim=1).tolist() == [12, 24, 36]


def test_all_or_none() -> None:
    pool = SlotPool(3, 2)
    held = pool.acquire(2)
    with pytest.raises(Overloaded, match="2 of 3 images are in flight, no room for 2 more"):
        pool.acquire(2)
    assert pool.in_use == 2
    held += pool.acquire()
    assert len({slot.index for slot in held}) == 3


def test_a_slot_is_given_back_once() -> None:
    pool = SlotPool(2, 2)
    slot = pool.acquire()[0]
    slot.release()
    with pytest.raises(AssertionError, match="given back twice"):
        slot.release()
    assert pool.in_use == 0
    assert len(pool.acquire(2)) == 2, "the second release must not have made a third slot"


def test_a_slot_that_was_never_taken_is_not_given_back() -> None:
    pool = SlotPool(2, 2)
    with pytest.raises(AssertionError):
        pool.slots[0].release()


def test_release_tells_who_waits_for_it_outside_the_lock() -> None:
    pool = SlotPool(1, 2)
    told: list[Slot] = []
    # Taking a slot needs the lock: it would never return if `release` still held it.
    pool.on_release = lambda: told.extend(pool.acquire())
    pool.acquire()[0].release()
    assert len(told) == 1


def test_the_gauge_follows() -> None:
    def in_use() -> float:
        return REGISTRY.get_sample_value("warmlane_slots_in_use") or 0.0

    gc.collect()  # the pools of other tests
    before, pool = in_use(), SlotPool(4, 2)
    held = pool.acquire(3)
    assert in_use() - before == pool.in_use == 3
    with pytest.raises(Overloaded):
        pool.acquire(2)
    for slot in held:
        slot.release()
    assert in_use() - before == pool.in_use == 0


def test_many_threads_never_share_a_slot() -> None:
    pool, threads, rounds = SlotPool(16, 2), 8, 300
    owners = [threading.Lock() for _ in pool.slots]
    start = threading.Barrier(threads)

    def take_and_give(seed: int) -> int:
        rng, taken = np.random.default_rng(seed), 0
        start.wait()
        for _ in range(rounds):
            count = int(rng.integers(1, 7))
            try:
                held = pool.acquire(count)
            except Overloaded:
                continue
            assert len(held) == count
            for slot in held:
                assert owners[slot.index].acquire(blocking=False), f"slot {slot.index} has two owners"
            taken += count
            for slot in held:
                owners[slot.index].release()
                slot.release()
        return taken

    with ThreadPoolExecutor(threads) as workers:
        taken = sum(workers.map(take_and_give, range(threads)))
    assert taken > rounds
    assert pool.in_use == 0
    assert sorted(slot.index for slot in pool.acquire(16)) == list(range(16))
