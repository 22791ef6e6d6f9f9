"""Profiles of an engine in another process, for `server.admin`."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.errors import Overloaded, Unavailable
from server.children import Child
from server.plan import EndProfile, Profiled, RecordProfile


class RemoteProfiler:
    """See `backend.Profiler`. Lives on the supervisor's event loop.

    Args:
        engines: those that are warm; the first is profiled.
    """

    def __init__(self, engines: Callable[[], Sequence[Child]]) -> None:
        self._engines = engines
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def profile(self, batches: int, timeout_s: float) -> bytes:
        """See `backend.Profiler.profile`."""
        engines = self._engines()
        if not engines:
            raise Unavailable("no engine is running")
        number, engine = next(self._numbers), engines[0]
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = found
        engine.order(RecordProfile(number, batches, timeout_s))
        try:
            ends: list[asyncio.Future[Any]] = [found, engine.exited]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not found.done():
                raise Unavailable("the engine has died")
            return found.result()
        finally:
            del self._waiting[number]
            if not found.done() and not engine.exited.done():
                engine.order(EndProfile(number))

    def take(self, event: Profiled) -> None:
        """An engine has answered."""
        found = self._waiting.get(event.number)
        if found is None or found.done():
            return
        if event.refusal:
            found.set_exception(Overloaded(event.refusal, 1000))
        else:
            found.set_result(event.trace)
