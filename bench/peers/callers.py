"""The load, the same for all: callers in processes of their own, who wait for each other's answers or do not."""

import asyncio
import itertools
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import uvloop

from bench.generator import shares
from bench.mix import mix_images
from bench.peers.wires import CallError, Line, Wire, open_line
from bench.tally import Window

_PAUSE_S = 0.05
# Calls of a schedule that are under way at once; more would only wait in line.
_MOST_UNDER_WAY = 2000


@dataclass(frozen=True, slots=True)
class Order:
    """What the callers do.

    Attributes:
        mix: which files, a key of `bench.mix.MIXES`.
        expected: the reference's best class of each file.
        callers: in a closed loop, calls under way at all times.
        rate: in an open loop, calls a second, at random times; 0 is a closed loop.
    """

    wire: Wire
    mix: str
    expected: Sequence[int]
    callers: int
    rate: float = 0.0
    warmup_s: float = 2.0
    seconds: float = 8.0
    seed: int = 0


@dataclass(slots=True)
class Heard:
    """What the callers heard in the window.

    Attributes:
        latencies_ms: of each answer, in an open loop from its scheduled time.
        lags_ms: how late each call of an open loop was sent.
        errors: by what they said, those outside the window too.
        agreed: answers with the expected class.
        cpu_s: of the callers' processes; `server_cpu_s` of the server's.
    """

    seconds: float
    latencies_ms: list[float] = field(default_factory=list)
    lags_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    agreed: int = 0
    cpu_s: float = 0.0
    server_cpu_s: float = 0.0

    @property
    def img_s(self) -> float:
        """Answers a second."""
        return len(self.latencies_ms) / self.seconds

    @property
    def agreement(self) -> float:
        """Share of answers with the expected class; NaN without answers."""
        return self.agreed / len(self.latencies_ms) if self.latencies_ms else float("nan")

    def percentile_ms(self, percent: float) -> float:
        """Of the latencies; NaN without answers."""
        return percentile(self.latencies_ms, percent)

    def add(self, other: "Heard") -> None:
        """Take in what another process heard."""
        self.latencies_ms += other.latencies_ms
        self.lags_ms += other.lags_ms
        self.errors += other.errors
        self.agreed += other.agreed
        self.cpu_s += other.cpu_s


def percentile(values: Sequence[float], percent: float) -> float:
    """NaN of nothing."""
    return float(np.percentile(values, percent)) if values else float("nan")


class Callers:
    """Processes of callers, started once for all services."""

    def __init__(self, mix: str, processes: int = 1) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, spawn, _prepare, (mix,)) for _ in range(processes)]
        wait([pool.submit(os.getpid) for pool in self._pools])

    def run(self, order: Order, server_cpu: Callable[[], float] = lambda: 0.0) -> Heard:
        """Call as ordered.

        Args:
            server_cpu: tells how many CPU seconds the server has used so far.
        """
        open_s = time.monotonic() + order.warmup_s
        window = Window(open_s, open_s + order.seconds)
        futures = [
            pool.submit(listen, part, window) for pool, part in zip(self._pools, self._parts(order), strict=True)
        ]
        time.sleep(order.warmup_s)
        before_s = server_cpu()
        time.sleep(max(0.0, window.stop_s - time.monotonic()))
        heard = Heard(order.seconds, server_cpu_s=server_cpu() - before_s)
        for future in futures:
            heard.add(future.result())
        return heard

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, order: Order) -> Iterator[Order]:
        count = len(self._pools)
        for number, callers in enumerate(shares(order.callers, count)):
            yield replace(order, callers=callers, rate=order.rate / count, seed=order.seed + number)


def _prepare(mix: str) -> None:
    """Runs in each process, which has imported this module for it: neither is done at the first load's expense."""
    mix_images(mix)


def listen(order: Order, window: Window) -> Heard:
    """Call from this process until the window closes."""
    return uvloop.run(_listen(order, window))


async def _listen(order: Order, window: Window) -> Heard:
    heard = Heard(order.seconds)
    if not order.callers:
        return heard
    async with open_line(order.wire, order.callers) as line:
        feed = itertools.cycle([(line.encode(file), index) for file, index in _files(order)])
        ear = _Ear(line, window, heard)
        load = _open_loop(ear, feed, order) if order.rate else _closed_loop(ear, feed, order.callers)
        calling = asyncio.create_task(load)
        await asyncio.sleep(window.open_s - time.monotonic())
        before_s = time.process_time()
        await asyncio.sleep(window.stop_s - time.monotonic())
        heard.cpu_s = time.process_time() - before_s
        await calling
    return heard


def _files(order: Order) -> Iterator[tuple[bytes, int]]:
    return zip(mix_images(order.mix), order.expected, strict=True)


@dataclass(frozen=True, slots=True)
class _Ear:
    """Makes calls, and writes down what is heard."""

    line: Line
    window: Window
    heard: Heard

    async def call(self, request: bytes, expected: int, due_s: float) -> None:
        try:
            found = await self.line.call(request)
        except CallError as error:
            self.heard.errors[str(error)] += 1
            await asyncio.sleep(_PAUSE_S)
            return
        now_s = time.monotonic()
        if self.window.open_s <= now_s < self.window.stop_s:
            self.heard.latencies_ms.append(1e3 * (now_s - due_s))
            self.heard.agreed += found == expected


async def _closed_loop(ear: _Ear, feed: Iterator[tuple[bytes, int]], callers: int) -> None:
    async def caller() -> None:
        while (now_s := time.monotonic()) < ear.window.stop_s:
            await ear.call(*next(feed), now_s)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def _open_loop(ear: _Ear, feed: Iterator[tuple[bytes, int]], order: Order) -> None:
    dice, due_s = random.Random(order.seed), time.monotonic()
    calls: set[asyncio.Task[None]] = set()
    while (due_s := due_s + dice.expovariate(order.rate)) < ear.window.stop_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        ear.heard.lags_ms.append(1e3 * (time.monotonic() - due_s))
        if len(calls) >= _MOST_UNDER_WAY:
            ear.heard.errors["not sent: too many under way"] += 1
            continue
        task = asyncio.create_task(ear.call(*next(feed), due_s))
        calls.add(task)
        task.add_done_callback(calls.discard)
    await asyncio.gather(*calls)
