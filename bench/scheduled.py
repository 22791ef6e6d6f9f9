"""Callers with a schedule, for `bench.generator`: each call is sent when it is due, whatever became of those before it.

Latency counts from the schedule, so that a generator or a service that falls behind cannot hide it.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from bench.arrivals import poisson
from bench.tally import Tally
from bench.ways import File, close_channels, encoded, open_channels, unary_call
from warmlane.v1 import classifier_pb2 as pb


async def call_on_schedule(
    target: str,
    files: Sequence[File],
    rate: float,
    begin_s: float,
    tally: Tally,
    connections: int = 1,
    seed: int = 0,
    timeout_s: float = 30.0,
) -> None:
    """Make single calls at random moments until the window closes, and wait for all their answers.

    Args:
        rate: calls a second, on average.
        begin_s: of the warm-up, in seconds of CLOCK_MONOTONIC.
        timeout_s: the deadline of each call.
    """
    channels = open_channels(target, connections)
    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    feed = itertools.cycle(encoded(files))
    stubs: Iterator[Callable[..., Any]] = itertools.cycle([unary_call(channel) for channel in channels])
    under_way: set[asyncio.Task[None]] = set()
    for due_s in poisson(rate, begin_s, tally.window.stop_s, random.Random(seed)):
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        task = asyncio.create_task(_call(next(stubs), *next(feed), due_s, tally, timeout_s))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    await close_channels(channels)


async def _call(
    stub: Callable[..., Any], file: int, request: bytes, due_s: float, tally: Tally, timeout_s: float
) -> None:
    sent_s = time.monotonic()
    # The loop's timers count whole milliseconds, and may be half a one early: latency is not to become shorter by that.
    due_s = min(due_s, sent_s)
    tally.sending(due_s, sent_s)
    try:
        answer = pb.ClassifyResponse.FromString(await stub(request, timeout=timeout_s))
    except grpc.aio.AioRpcError as error:
        tally.failed(error.code().name)
    else:
        tally.answered_on_schedule(file, due_s, sent_s, answer)
