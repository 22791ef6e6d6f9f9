"""The load generator: callers in processes of their own. Each calls again as soon as it is answered, or on a schedule.

All processes measure in the same window of CLOCK_MONOTONIC; what was sent before it is warm-up.
"""

import asyncio
import math
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import uvloop

from bench.clients import call_as_users_do
from bench.expected import Expected
from bench.mix import mix_images
from bench.scheduled import call_on_schedule
from bench.summary import Samples
from bench.tally import Tally, Window
from bench.ways import Calls, File
from pipeline.garbage import spare_what_exists

# The service's designed answers to too many calls; all other errors make a run invalid.
EXPECTED_ERRORS = frozenset({"RESOURCE_EXHAUSTED"})
# Also where calls come whether or not there is room.
_EXPECTED_ON_SCHEDULE = EXPECTED_ERRORS | {"DEADLINE_EXCEEDED"}
_BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """What the callers do.

    Attributes:
        target: "host:port" of the service.
        mix: which files, a key of `bench.mix.MIXES` or a folder.
        callers: how many call at the same time; without a meaning on a schedule.
        processes: how many processes they are spread over.
        warmup_s: seconds before the window.
        seconds: length of the window.
        connections: of each process, shared by its callers.
        way: "client" calls as users do; "unary", "batch" and "stream" cost the callers less, see `bench.ways`.
        calls: where `seconds` is 0, how many calls to make instead.
        rate: calls a second of all processes, on a schedule; 0 where callers wait for answers. See `bench.scheduled`.
        images: of each call, in "batch".
        expected: of each file, None to leave it out; empty where answers are not checked.
        seed: of the schedule.
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
    rate: float = 0.0
    images: int = 8
    expected: tuple[Expected | None, ...] = ()
    seed: int = 0

    def files(self) -> list[File]:
        """What is sent, in order."""
        files = enumerate(mix_images(self.mix))
        return [(number, file) for number, file in files if not self.expected or self.expected[number]]


@dataclass(frozen=True, slots=True)
class Load:
    """What the callers of one process, or of all, measured.

    Attributes:
        samples: one row for each answer that came in the window.
        seconds: length of the window.
        open_s: when it began, in seconds of CLOCK_MONOTONIC.
        errors: answers that were errors, by gRPC status; those of the warm-up too.
        cpu_s: CPU seconds of the callers' processes in the window.
        server_cpu_s: CPU seconds of the server in the window; 0 where they cannot be read.
        too_slow: processes that were busy for most of the window, so that they may have held the service back.
        due: calls scheduled within the window.
        sending_s: from its opening until the last of them was sent, in seconds.
        in_calls_s: that callers who wait spent in calls within the window, added up over their images.
        checked, agreed: answers that were held against what is expected, and those whose first class is that.
    """

    samples: Samples
    seconds: float
    errors: Counter[str]
    cpu_s: float
    server_cpu_s: float = 0.0
    too_slow: int = 0
    due: int = 0
    sending_s: float = 0.0
    in_calls_s: float = 0.0
    checked: int = 0
    agreed: int = 0
    open_s: float = 0.0

    @property
    def img_s(self) -> float:
        """Images answered per second."""
        return len(self.samples) / self.seconds

    @property
    def missed(self) -> float:
        """By what share the calls of a schedule were sent more slowly than planned; 0 without a schedule."""
        return max(0.0, 1 - self.seconds / self.sending_s) if self.due else 0.0

    @property
    def unexpected(self) -> dict[str, int]:
        """Errors that make the run invalid, by gRPC status."""
        expected = _EXPECTED_ON_SCHEDULE if self.due else EXPECTED_ERRORS
        return {status: count for status, count in self.errors.items() if status not in expected}


class Generator:
    """Processes that are ready to call, so that several runs pay for their start once.

    Args:
        mix: which files, a key of `bench.mix.MIXES` or a folder.
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
        futures = [pool.submit(call, part, window) for pool, part in zip(self._pools, self._parts(plan), strict=False)]
        time.sleep(plan.warmup_s)
        cpu_before_s = server_cpu()
        wait(futures, window.left_s())
        cpu_s, seconds = server_cpu() - cpu_before_s, min(time.monotonic(), window.stop_s) - open_s
        return _merge([future.result() for future in futures], seconds, cpu_s, open_s)

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, plan: Plan) -> list[Plan]:
        """One for each process that has something to do."""
        count = len(self._pools) if plan.rate else min(len(self._pools), plan.callers)
        callers, calls = shares(plan.callers, count), shares(plan.calls, count)
        return [
            replace(plan, callers=callers[n], calls=calls[n], rate=plan.rate / count, seed=count * plan.seed + n)
            for n in range(count)
        ]


def shares(total: int, parts: int) -> list[int]:
    """`total` split into whole numbers as equal as can be."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def call(plan: Plan, window: Window) -> Load:
    """Call from this process until the window closes, or the calls are done."""
    return uvloop.run(_drive(plan, window))


def _prepare(mix: str) -> None:
    mix_images(mix)
    # Or their pauses would look like the server's.
    spare_what_exists()


async def _drive(plan: Plan, window: Window) -> Load:
    tally = Tally(window, plan.expected)
    calling = asyncio.create_task(_call(plan, plan.files(), tally))
    await asyncio.sleep(window.open_s - time.monotonic())
    cpu_before_s = time.process_time()
    await asyncio.wait({calling}, timeout=window.left_s())
    cpu_s, seconds = time.process_time() - cpu_before_s, time.monotonic() - window.open_s
    await calling
    return Load(
        samples=tally.rows.samples(),
        seconds=seconds,
        errors=tally.errors,
        cpu_s=cpu_s,
        due=tally.due,
        sending_s=tally.sending_s,
        in_calls_s=tally.in_calls_s,
        checked=tally.checked,
        agreed=tally.agreed,
    )


async def _call(plan: Plan, files: Sequence[File], tally: Tally) -> None:
    if plan.rate:
        begin_s = tally.window.open_s - plan.warmup_s
        await call_on_schedule(plan.target, files, plan.rate, begin_s, tally, plan.connections, plan.seed)
    elif plan.way == "client":
        calls = None if plan.seconds else plan.calls
        await call_as_users_do(plan.target, files, plan.callers, plan.connections, tally, calls)
    else:
        await Calls(plan.target, files, plan.callers, plan.connections, tally, plan.images).run(plan.way)


def _merge(loads: Sequence[Load], seconds: float, server_cpu_s: float, open_s: float) -> Load:
    return Load(
        samples=np.concatenate([load.samples for load in loads]),
        seconds=seconds,
        errors=sum((load.errors for load in loads), Counter()),
        cpu_s=sum(load.cpu_s for load in loads),
        server_cpu_s=server_cpu_s,
        too_slow=sum(load.cpu_s > _BUSY_SHARE * load.seconds for load in loads),
        due=sum(load.due for load in loads),
        sending_s=max(load.sending_s for load in loads),
        in_calls_s=sum(load.in_calls_s for load in loads),
        checked=sum(load.checked for load in loads),
        agreed=sum(load.agreed for load in loads),
        open_s=open_s,
    )
