"""Who has still to say that a dead frontend's slots are idle."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.wire import EngineId, Sender


@dataclass
class _Wait:
    engines: set[EngineId]
    all_idle: asyncio.Event = field(default_factory=asyncio.Event)


class Confirmations:
    """Of each engine that has ever heard of the frontend: it says so, or it is dead."""

    def __init__(self) -> None:
        self._waits: dict[Sender, _Wait] = {}

    async def wait(self, sender: Sender, engines: Iterable[EngineId]) -> None:
        """Wait for all of `engines`, which have been asked."""
        wait = self._waits[sender] = _Wait(set(engines))
        if wait.engines:
            await wait.all_idle.wait()
        del self._waits[sender]

    def confirm(self, sender: Sender, engine: EngineId) -> None:
        """An engine will not touch the slots of `sender` any more."""
        if sender in self._waits:
            self._strike(self._waits[sender], engine)

    def bury(self, engine: EngineId) -> None:
        """An engine's process has been reaped: it touches nothing any more."""
        for wait in self._waits.values():
            self._strike(wait, engine)

    def _strike(self, wait: _Wait, engine: EngineId) -> None:
        wait.engines.discard(engine)
        if not wait.engines:
            wait.all_idle.set()
