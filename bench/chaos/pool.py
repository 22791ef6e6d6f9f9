"""The callers' processes."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from bench.chaos.callers import call_until
from bench.chaos.outcomes import Outcome
from bench.generator import shares

_stop: Event


@contextmanager
def calling(target: str, callers: int, processes: int, seed: int) -> Iterator[list[Outcome]]:
    """Callers in processes of their own for as long as the block lasts; then the list holds their outcomes."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    # A pool each: one pool of several could give two shares to the same process.
    pools = [ProcessPoolExecutor(1, spawn, _keep, (stop,)) for _ in range(processes)]
    parts = zip(pools, shares(callers, processes), strict=True)
    calls = [pool.submit(_call, target, count, seed * processes + number) for number, (pool, count) in enumerate(parts)]
    outcomes: list[Outcome] = []
    try:
        yield outcomes
    finally:
        stop.set()
        for call in calls:
            outcomes += call.result()
        for pool in pools:
            pool.shutdown()


def _keep(stop: Event) -> None:
    """An event can be given to a process only at its start."""
    global _stop
    _stop = stop


def _call(target: str, callers: int, seed: int) -> list[Outcome]:
    return call_until(target, callers, seed, _stop)
