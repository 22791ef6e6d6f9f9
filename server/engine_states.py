"""What the supervisor knows of the engines, and so what the frontends must hear."""

from collections.abc import Iterable
from dataclasses import replace

from pipeline.info import ModelInfo
from pipeline.shared import Layout
from pipeline.wire import EngineId
from server.plan import News, Warm
from server.shared_memory import SharedMemory


class EngineStates:
    """Which engines are warm, and what they serve.

    Args:
        count: of engines, all of which are to be warm before anything is served.
        is_strict: see `settings.Settings.strict`.

    Attributes:
        info: what is served; None until the first engine has told.
    """

    def __init__(self, memory: SharedMemory, count: int, *, is_strict: bool) -> None:
        self.info: ModelInfo | None = None
        self._memory = memory
        self._count = count
        self._is_strict = is_strict
        # Of each that is warm, what decodes JPEGs on its device.
        self._warm: dict[EngineId, str] = {}
        self._recompiled: set[EngineId] = set()
        self._was_complete = False

    def __contains__(self, engine: EngineId) -> bool:
        """Whether it is warm."""
        return engine in self._warm

    def describe(self, info: ModelInfo) -> Layout:
        """An engine has told what it will serve: slots are made for the first. How they are laid out.

        Raises:
            StartError: there is no memory for slots, or this engine wants other ones.
        """
        layout = self._memory.divide(info.canvas)
        self.info = self.info or info
        return layout

    def warm(self, engine: EngineId, event: Warm) -> None:
        """It answers from now on."""
        assert self.info is not None
        self._warm[engine] = event.gpu_decode
        self.info = replace(self.info, execution=event.execution, cost=event.cost)
        self._was_complete = self._was_complete or len(self._warm) == self._count

    def recompiled(self, engine: EngineId) -> None:
        """It has compiled something after it was warm."""
        self._recompiled.add(engine)

    def forget(self, engine: EngineId) -> None:
        """Its process has ended."""
        self._warm.pop(engine, None)
        self._recompiled.discard(engine)

    def news(self) -> News:
        """What the frontends must know."""
        is_sound = not (self._is_strict and self._recompiled)
        is_serving = self._was_complete and bool(self._warm) and is_sound
        info = self.info and replace(self.info, gpu_decode=decoder_of_all(self._warm.values()))
        return News(info, self._memory.layout, tuple(sorted(self._warm)), is_serving)


def decoder_of_all(names: Iterable[str]) -> str:
    """What decodes JPEGs on the device of every engine; "" unless all have some: one without would send files back."""
    return min(names, default="")
