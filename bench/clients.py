"""Callers who use the client, each calling again as soon as it is answered. For `bench.generator`."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence

from bench.tally import Tally, Window
from bench.ways import File
from warmlane.client import AsyncClient
from warmlane.errors import Overloaded, WarmlaneError

_PAUSE_MS = 10


async def call_as_users_do(
    target: str, files: Sequence[File], callers: int, connections: int, tally: Tally, calls: int | None = None
) -> None:
    """Call until the window closes, or so many times."""
    feed = _feed(files, tally.window) if calls is None else itertools.islice(itertools.cycle(files), calls)
    # One attempt: a refusal that is tried again would be counted as a long wait.
    async with AsyncClient(target, max_attempts=1, connections=connections) as client:
        await asyncio.gather(*(_caller(client, feed, tally) for _ in range(callers)))


def _feed(files: Sequence[File], window: Window) -> Iterator[File]:
    """Shared by the callers of a process: each takes the next file when it is free."""
    for file in itertools.cycle(files):
        if time.monotonic() >= window.stop_s:
            return
        yield file


async def _caller(client: AsyncClient, feed: Iterator[File], tally: Tally) -> None:
    for number, file in feed:
        sent_s = time.monotonic()
        try:
            answer = await client.classify(file)
        except Overloaded as error:
            tally.failed(error.code.name)
            await asyncio.sleep((error.retry_after_ms or _PAUSE_MS) / 1e3)
        except WarmlaneError as error:
            # The run is invalid: calling on would only bury the server's log.
            tally.failed(error.code.name)
            return
        else:
            tally.answered(number, sent_s, answer)
