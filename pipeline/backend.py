"""The interface between the gRPC side and what answers it, in this process or in others."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

# For types only: a supervisor, which knows profilers, does without torch.
if TYPE_CHECKING:
    from pipeline.decoders import Decoders
    from pipeline.info import ModelInfo
    from pipeline.request import Request
    from pipeline.slots import SlotPool


class Backend(Protocol):
    """What stands behind the servicer, whichever process it is in.

    Attributes:
        decoders: say how much waits to be decoded.
    """

    decoders: "Decoders"

    @property
    def slots(self) -> "SlotPool":
        """Hands out the canvases; while serving only."""

    @property
    def info(self) -> "ModelInfo":
        """What is served; while serving only."""

    def check_serving(self) -> None:
        """Raise `Unavailable`, saying why, unless requests can be answered."""

    def submit(self, request: "Request") -> None:
        """Send an admitted request, whose slot has been taken, on its way. Its future tells the outcome."""

    def expected_wait_ms(self) -> int:
        """How long the images in flight will take, in milliseconds, at the pace of recent batches."""

    def watch_slots(self, on_release: Callable[[], None]) -> None:
        """Have `on_release` called, on any thread, whenever a slot has been given back or an image been decoded."""


class Profiler(Protocol):
    """What can have an engine recorded, in this process or in another."""

    async def profile(self, batches: int, timeout_s: float) -> bytes:
        """Record the engine while it serves `batches`, or for `timeout_s` seconds if they do not come.

        Returns:
            What `profiling.record` returns.

        Raises:
            Unavailable: nothing can be answered, so there is nothing to record.
            Overloaded: a profile is being recorded already.
        """
