"""Callers who do not wait for each other: each call is sent at its scheduled time, whatever became of those before it.

Latency counts from the schedule, so that a generator or a server that falls behind cannot hide it.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import uvloop

from bench.arrivals import poisson
from bench.palette import COLOURS, picture
from bench.tally import WRONG_ANSWER
from bench.ways import close_channels, open_channels
from warmlane.v1 import classifier_pb2 as pb

METHOD = f"/{pb.DESCRIPTOR.services_by_name['Classifier'].full_name}/Classify"


@dataclass(frozen=True, slots=True)
class Called:
    """One call. All times are seconds of CLOCK_MONOTONIC.

    Attributes:
        colour: of its image, which is its answer; far more calls lie between two of one colour than are under way.
        due_s: when it was to be sent.
        sent_s: when it was.
        deadline_s: its caller's; infinite for one that has none.
        ended_s: when its outcome was there.
        status: a gRPC status, or WRONG_ANSWER.
    """

    colour: int
    due_s: float
    sent_s: float
    deadline_s: float
    ended_s: float
    status: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """When to call, and with how much patience.

    Attributes:
        rate: calls a second, at random times as of callers who know nothing of each other.
        patience_s: what a call's deadline is drawn from, in seconds.
    """

    target: str
    rate: float
    open_s: float
    seconds: float
    patience_s: tuple[float, ...]
    connections: int = 4
    seed: int = 0

    def times(self) -> Iterator[tuple[float, float]]:
        """Each call's time, and its patience."""
        dice = random.Random(self.seed)
        for due_s in poisson(self.rate, self.open_s, self.open_s + self.seconds, dice):
            yield due_s, dice.choice(self.patience_s)


@dataclass(slots=True)
class _Callers:
    """The calls of one process."""

    target: str
    connections: int
    called: list[Called] = field(default_factory=list)

    async def __aenter__(self) -> "_Callers":
        self._channels = open_channels(self.target, self.connections)
        self._stubs = itertools.cycle([channel.unary_unary(METHOD, None, None) for channel in self._channels])
        self._colours = itertools.cycle(range(COLOURS))
        self._requests = _requests()
        await asyncio.gather(*(channel.channel_ready() for channel in self._channels))
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_channels(self._channels)

    _channels: list[grpc.aio.Channel] = field(init=False)
    _stubs: Iterator[Any] = field(init=False)
    _colours: Iterator[int] = field(init=False)
    _requests: Sequence[bytes] = field(init=False)

    async def call(self, due_s: float, patience_s: float | None = None) -> None:
        """Make one call, now."""
        colour, sent_s = next(self._colours), time.monotonic()
        try:
            answer = pb.ClassifyResponse.FromString(await next(self._stubs)(self._requests[colour], timeout=patience_s))
            status = "OK" if [each.index for each in answer.predictions] == [colour] else WRONG_ANSWER
        except grpc.aio.AioRpcError as error:
            status = error.code().name
        deadline_s = sent_s + (patience_s or float("inf"))
        self.called.append(Called(colour, due_s, sent_s, deadline_s, time.monotonic(), status))


def open_loop(schedule: Schedule) -> list[Called]:
    """Call from this process as scheduled; what became of each call."""
    return uvloop.run(_open_loop(schedule))


def closed_loop(target: str, callers: int, until_s: float, connections: int = 4) -> list[Called]:
    """So many callers, each calling again when answered: how fast the service can go."""
    return uvloop.run(_closed_loop(target, callers, until_s, connections))


async def _open_loop(schedule: Schedule) -> list[Called]:
    calls: set[asyncio.Task[None]] = set()
    async with _Callers(schedule.target, schedule.connections) as callers:
        for due_s, patience_s in schedule.times():
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            task = asyncio.create_task(callers.call(due_s, patience_s))
            calls.add(task)
            task.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
    return callers.called


async def _closed_loop(target: str, callers: int, until_s: float, connections: int) -> list[Called]:
    async def caller() -> None:
        while time.monotonic() < until_s:
            await some.call(time.monotonic())

    async with _Callers(target, connections) as some:
        await asyncio.gather(*(caller() for _ in range(callers)))
    return some.called


def _requests() -> list[bytes]:
    """Of each colour, ready to be sent."""
    return [pb.ClassifyRequest(image=picture(colour), top_k=1).SerializeToString() for colour in range(COLOURS)]
