"""The load generator: callers in processes of their own, each calling again as soon as it is answered.

All processes measure in the same window of CLOCK_MONOTONIC; what was sent before it is warm-up.
"""

import asyncio
import itertools
import math
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import uvloop

from bench.mix import mix_images
from bench.summary import Samples, sample_row, to_samples
from bench.ways import Calls, Window
from warmlane.client import AsyncClient
from warmlane.errors import Overloaded, WarmlaneError

# The service's designed answer to too many callers; all other errors make a run invalid.
EXPECTED_ERRORS = frozenset({"RESOURCE_EXHAUSTED"})
_PAUSE_MS = 10
_BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """What the callers do.

    Attributes:
        target: "host:port" of the service.
        mix: which files, a key of `bench.mix.MIXES`.
        callers: how many call at the same time.
        processes: how many processes they are spread over.
        warmup_s: seconds before the window.
        seconds: length of the window.
        connections: of each process, shared by its callers.
        way: "client" calls as users do; "unary" and "stream" cost the callers less, see `bench.ways`.
        calls: where `seconds` is 0, how many calls to make instead.
    """

    target: str
    mix: str = "imagenet"
    callers: int = 16
    processes: int = 1
    warmup_s: float = 2.0
    seconds: float = 10.0
    calls: int = 0
    connections: int = 1
    way: str = "client"


@dataclass(frozen=True, slots=True)
class Load:
    """What the callers of one process, or of all, measured.

    Attributes:
        samples: one row for each answer that came in the window.
        seconds: length of the window.
        errors: answers that were errors, by gRPC status; those of the warm-up too.
        cpu_s: CPU seconds of the callers' processes in the window.
        server_cpu_s: CPU seconds of the server in the window; 0 where they cannot be read.
        too_slow: processes that were busy for most of the window, so that they may have held the service back.
    """

    samples: Samples
    seconds: float
    errors: Counter[str]
    cpu_s: float
    server_cpu_s: float = 0.0
    too_slow: int = 0

    @property
    def img_s(self) -> float:
        """Images answered per second."""
        return len(self.samples) / self.seconds

    @property
    def unexpected(self) -> dict[str, int]:
        """Errors that make the run invalid, by gRPC status."""
        return {status: count for status, count in self.errors.items() if status not in EXPECTED_ERRORS}


class Generator:
    """Processes that are ready to call, so that several runs pay for their start once.

    Args:
        mix: which files, a key of `bench.mix.MIXES`.
        processes: how many.
    """

    def __init__(self, mix: str, processes: int = 1) -> None:
        spawn = multiprocessing.get_context("spawn")
        # A pool each: one pool of several could give two shares of a plan to the same process.
        self._pools = [
            ProcessPoolExecutor(1, mp_context=spawn, initializer=_prepare, initargs=(mix,)) for _ in range(processes)
        ]
        wait([pool.submit(os.getpid) for pool in self._pools])

    def run(self, plan: Plan, server_cpu: Callable[[], float] = lambda: 0.0) -> Load:
        """Drive the service as planned.

        Args:
            server_cpu: tells how many CPU seconds the server has used so far.
        """
        open_s = time.monotonic() + plan.warmup_s
        window = Window(open_s, open_s + (plan.seconds or math.inf))
        futures = [
            pool.submit(closed_loop, part, window) for pool, part in zip(self._pools, self._parts(plan), strict=True)
        ]
        time.sleep(plan.warmup_s)
        cpu_before_s = server_cpu()
        wait(futures, window.left_s())
        cpu_s, seconds = server_cpu() - cpu_before_s, min(time.monotonic(), window.stop_s) - open_s
        return _merge([future.result() for future in futures], seconds, cpu_s)

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, plan: Plan) -> list[Plan]:
        callers, calls = (shares(total, len(self._pools)) for total in (plan.callers, plan.calls))
        return [replace(plan, callers=callers[n], calls=calls[n]) for n in range(len(self._pools))]


def shares(total: int, parts: int) -> list[int]:
    """`total` split into whole numbers as equal as can be."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def closed_loop(plan: Plan, window: Window) -> Load:
    """Call from this process until the window closes, or the calls are done."""
    return uvloop.run(_drive(plan, window))


def _prepare(mix: str) -> None:
    mix_images(mix)


async def _drive(plan: Plan, window: Window) -> Load:
    rows: list[tuple[float, ...]] = []
    errors: Counter[str] = Counter()
    files = mix_images(plan.mix)
    if plan.way == "client":
        calling = asyncio.create_task(_call(plan, files, window, rows, errors))
    else:
        calls = Calls(plan.target, files, plan.callers, plan.connections, window, rows, errors)
        calling = asyncio.create_task(calls.run(plan.way))
    await asyncio.sleep(window.open_s - time.monotonic())
    cpu_before_s = time.process_time()
    await calling
    return Load(to_samples(rows), time.monotonic() - window.open_s, errors, time.process_time() - cpu_before_s)


async def _call(
    plan: Plan, files: Sequence[bytes], window: Window, rows: list[tuple[float, ...]], errors: Counter[str]
) -> None:
    feed = _feed(files, plan, window)
    # One attempt: a refusal that is tried again would be counted as a long wait.
    async with AsyncClient(plan.target, max_attempts=1, connections=plan.connections) as client:
        await asyncio.gather(*(_caller(client, feed, window, rows, errors) for _ in range(plan.callers)))


def _feed(files: Sequence[bytes], plan: Plan, window: Window) -> Iterator[bytes]:
    """Shared by the callers of a process: each takes the next file when it is free."""
    if not plan.seconds:
        yield from itertools.islice(itertools.cycle(files), plan.calls)
        return
    for file in itertools.cycle(files):
        if time.monotonic() >= window.stop_s:
            return
        yield file


async def _caller(
    client: AsyncClient, feed: Iterator[bytes], window: Window, rows: list[tuple[float, ...]], errors: Counter[str]
) -> None:
    for file in feed:
        sent_s = time.monotonic()
        try:
            answer = await client.classify(file)
        except Overloaded as error:
            errors[error.code.name] += 1
            await asyncio.sleep((error.retry_after_ms or _PAUSE_MS) / 1e3)
        except WarmlaneError as error:
            # The run is invalid: calling on would only bury the server's log.
            errors[error.code.name] += 1
            return
        else:
            answered_s = time.monotonic()
            if window.open_s <= answered_s <= window.stop_s:
                rows.append(sample_row(1e3 * (answered_s - sent_s), answer.timings))


def _merge(loads: Sequence[Load], seconds: float, server_cpu_s: float) -> Load:
    return Load(
        samples=np.concatenate([load.samples for load in loads]),
        seconds=seconds,
        errors=sum((load.errors for load in loads), Counter()),
        cpu_s=sum(load.cpu_s for load in loads),
        server_cpu_s=server_cpu_s,
        too_slow=sum(load.cpu_s > _BUSY_SHARE * load.seconds for load in loads),
    )
