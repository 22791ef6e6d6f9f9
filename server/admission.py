"""Who may come in: the checks that cost nothing, before an image takes a slot or a decode thread."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc

from pipeline import metrics
from pipeline.backend import Backend
from pipeline.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable, UnknownModel
from pipeline.options import MAX_TOP_K
from pipeline.slots import Slot

_DEFAULT_TOP_K = 5
# One slot in so many is not for streams: some that wait for every slot would leave none to single calls.
_KEPT_FROM_STREAMS = 8


class Admission:
    """Hands out slots, and refuses what cannot be served. Lives on the event loop's thread.

    Attributes:
        draining: resolves when draining begins; streams watch it to stop reading.
    """

    def __init__(
        self, backend: Backend, loop: asyncio.AbstractEventLoop, max_undecoded_bytes: int, max_calls: int
    ) -> None:
        self.draining: asyncio.Future[None] = loop.create_future()
        self._backend = backend
        self._loop = loop
        self._max_undecoded_bytes = max_undecoded_bytes
        self._max_calls = max_calls
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._open_calls = 0
        self._all_closed: asyncio.Future[None] = loop.create_future()
        backend.watch_slots(self._on_release)

    def open_call(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Take a call in: draining waits until its status has been sent.

        Raises:
            Unavailable: no requests are taken now.
            Overloaded: too many calls are open.
        """
        self._check_serving()
        if self._open_calls >= self._max_calls:
            metrics.DROPPED.labels("admission", "overloaded").inc()
            retry_after_ms = max(self._backend.expected_wait_ms(), 1)
            raise Overloaded(f"{self._open_calls} calls are open, no more may (--max-calls)", retry_after_ms)
        self._open_calls += 1
        context.add_done_callback(self._on_call_closed)  # type: ignore[arg-type]

    def _check_serving(self) -> None:
        if self.draining.done():
            raise Unavailable("the server is draining: it takes no new calls")
        self._backend.check_serving()

    def check_model(self, name: str) -> None:
        """Raise `UnknownModel` unless `name` is the served model or empty."""
        served = self._backend.info.name
        if name not in ("", served):
            raise UnknownModel(f"no model {name[:100]!r} is served here, only {served!r}")

    def check_deadline(self, deadline: float) -> None:
        """Raise `DeadlineExceeded` if the deadline (seconds of `time.monotonic()`) has passed or will in the queue."""
        if math.isinf(deadline):
            return  # the wait costs something to work out, and most callers set none
        left_ms = (deadline - time.monotonic()) * 1e3
        expected_ms = self._backend.expected_wait_ms()
        if left_ms > expected_ms:
            return
        metrics.DROPPED.labels("admission", "expired" if left_ms <= 0 else "late").inc()
        if left_ms <= 0:
            raise DeadlineExceeded("the deadline passed before admission")
        raise DeadlineExceeded(f"the deadline is {left_ms:.0f} ms away and the queue takes {expected_ms} ms")

    def take_slots(self, images: Sequence[bytes]) -> list[Slot]:
        """A slot for each encoded image, all or none.

        Raises:
            Overloaded: there are not so many, or too many bytes wait to be decoded.
        """
        try:
            self._check_undecoded(sum(map(len, images)))
            return self._backend.slots.acquire(len(images))
        except Overloaded as error:
            metrics.DROPPED.labels("admission", "overloaded").inc(len(images))
            error.retry_after_ms = max(self._backend.expected_wait_ms(), 1)
            raise

    def _check_undecoded(self, size: int) -> None:
        # What waits in the decoders; a call's message itself lies in memory before anyone can refuse it.
        waiting, limit = self._backend.decoders.undecoded_bytes, self._max_undecoded_bytes
        if waiting and waiting + size > limit:
            raise Overloaded(
                f"{waiting} bytes wait to be decoded, no room for {size} more: {limit} may (--max-undecoded-bytes)"
            )

    async def wait_for_slot(self, image: bytes) -> Slot:
        """A slot for one encoded image, as soon as there is room: for streams, which wait instead of being refused."""
        if not self._waiting:
            with contextlib.suppress(Overloaded):
                return self._slot_for(image)
        while True:
            # In line before looking: a slot that is released in between then still wakes us.
            released = self._loop.create_future()
            self._waiting.append(released)
            try:
                slot = self._slot_for(image)
            except Overloaded:
                await self._woken(released)
            else:
                released.cancel()
                return slot

    def _slot_for(self, image: bytes) -> Slot:
        self._check_undecoded(len(image))
        slots = self._backend.slots
        if slots.in_use >= len(slots.slots) - len(slots.slots) // _KEPT_FROM_STREAMS:
            raise Overloaded("the rest is for single calls, which are refused where a stream waits")
        return slots.acquire()[0]

    async def _woken(self, released: asyncio.Future[None]) -> None:
        try:
            await released
        except asyncio.CancelledError:
            if not released.cancelled():
                self._wake_one()  # the slot that woke us is another's now
            raise

    async def drain(self, timeout_s: float) -> None:
        """Take no new calls from now on, and wait for those that were taken."""
        self.draining.set_result(None)
        if self._open_calls:
            await asyncio.wait({self._all_closed}, timeout=timeout_s)

    def _on_call_closed(self, _: object) -> None:
        self._open_calls -= 1
        if self.draining.done() and not self._open_calls and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _on_release(self) -> None:
        # Called from any thread; the check is a hint, and every release after it wakes again.
        if self._waiting:
            self._loop.call_soon_threadsafe(self._wake_one)

    def _wake_one(self) -> None:
        while self._waiting:
            released = self._waiting.popleft()
            if not released.done():
                released.set_result(None)
                return


def checked_top_k(top_k: int) -> int:
    """How many predictions to answer with; 0 means 5.

    Raises:
        InvalidRequest: below 0 or over the most that can be asked for.
    """
    if not 0 <= top_k <= MAX_TOP_K:
        raise InvalidRequest(f"top_k is {top_k}; it must be 0 to {MAX_TOP_K} (0 means {_DEFAULT_TOP_K})")
    return top_k or _DEFAULT_TOP_K


def deadline_of(remaining_s: float | None) -> float:
    """A call's deadline in seconds of `time.monotonic()`, from what gRPC says is left of it."""
    return math.inf if remaining_s is None else time.monotonic() + remaining_s
