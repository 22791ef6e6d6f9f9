"""The frontend's side of the shared slots: decoded images go to the engines, replies come back.

decode thread: pixels in a slot -> send -> descriptor -> engine -> reply -> event loop's thread: request.future
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from pipeline.block import SharedBlock
from pipeline.errors import DeadlineExceeded, PipelineError, Unavailable
from pipeline.options import MAX_TOP_K
from pipeline.pipes import DescriptorPipe, messages
from pipeline.request import Request, Result
from pipeline.shared import StatusPage
from pipeline.wire import Descriptor, EngineId, Outcome, Reply, Sender, unpack_replies

log = logging.getLogger(__name__)


class _Sent(NamedTuple):
    request: Request
    engine: EngineId
    generation: int


class Dispatcher:
    """Sends requests to the engine that has the fewest, and gives each its reply. `send` is for any thread, all else
    for the event loop's.

    Args:
        block: this frontend's.
        replies: the reader of this frontend's pipe; see `pipes.Pipe`.
        descriptors: the writers of the engines' pipes.
        classes: that the model knows.
        on_undecoded: takes a request whose file an engine could not decode; its slot is its own again.

    Attributes:
        engines: that are warm.
    """

    def __init__(
        self,
        block: SharedBlock,
        page: StatusPage,
        sender: Sender,
        replies: socket.socket,
        descriptors: Sequence[socket.socket],
        *,
        classes: int,
        on_undecoded: Callable[[Request], None],
    ) -> None:
        self.engines: tuple[EngineId, ...] = ()
        self._block = block
        self._page = page
        self._sender = sender
        self._replies = replies
        self._descriptors = [DescriptorPipe(writer) for writer in descriptors]
        self._on_undecoded = on_undecoded
        self._classes = min(classes, MAX_TOP_K)
        self._own = page.in_flight[sender.frontend]
        self._own[:] = 0.0  # what a dead predecessor had sent
        self._sent: list[_Sent | None] = [None] * block.layout.slots
        self._lock = threading.Lock()

    @property
    def in_flight(self) -> float:
        """Images that this frontend has sent and that are not answered."""
        return float(self._own.sum())

    def send(self, request: Request) -> None:
        """Send a decoded request; its slot is the engine's from here on.

        Raises:
            Unavailable: no engine is warm; the slot is still the request's.
        """
        assert request.slot is not None
        assert request.geometry is not None
        request.stamps.queued = time.monotonic_ns()
        slot, block = request.slot.index, self._block
        with self._lock:
            if not self.engines:
                raise Unavailable("no engine is running")
            engine = self._least_busy()
            # Never 0, which a slot that nobody has cancelled says.
            generation = int(block.generation[slot]) % 0xFFFFFFFF + 1
            block.deadline[slot], block.generation[slot] = request.deadline, generation
            self._sent[slot] = _Sent(request, engine, generation)
            self._own[engine.engine] += 1
        request.future.add_done_callback(partial(self._flag_if_cancelled, slot, generation))
        descriptor = Descriptor(
            self._sender,
            engine.incarnation,
            slot,
            generation,
            request.stamps.queued,
            request.geometry.row(),
            request.encoded or (0, 0, 0),
        )
        self._descriptors[engine.engine].send(descriptor.pack())

    def take_replies(self) -> None:
        """Handle all replies that have come."""
        for message in messages(self._replies):
            for reply, request in self._settled(message):
                self._resolve(request, reply)

    def use(self, engines: Sequence[EngineId]) -> None:
        """Send to these from now on. What others were sent fails: they have died, and can no longer touch a slot."""
        with self._lock:
            for gone in set(self.engines) - set(engines):
                self._descriptors[gone.engine].forget()
            self.engines = tuple(engines)
            lost = [sent for sent in self._sent if sent is not None and sent.engine not in self.engines]
            for sent in lost:
                self._forget(sent)
        for sent in lost:
            sent.request.abandon(Unavailable("the engine has died"))

    def close(self) -> None:
        """End what threads there are; nothing may be under way."""
        for pipe in self._descriptors:
            pipe.close()

    def _least_busy(self) -> EngineId:
        if len(self.engines) == 1:
            return self.engines[0]
        load = self._page.in_flight.sum(axis=0)
        # Where several have as few, each frontend begins at another: two that look at once shall not take the same.
        first = self._sender.frontend
        return min(self.engines, key=lambda engine: (load[engine.engine], (engine.engine - first) % len(load)))

    def _flag_if_cancelled(self, slot: int, generation: int, future: "Future[Result]") -> None:
        if future.cancelled():
            self._block.cancelled[slot] = generation

    def _settled(self, message: bytes) -> list[tuple[Reply, Request]]:
        settled = []
        with self._lock:
            for reply in unpack_replies(message):
                sent = self._sent[reply.slot]
                if sent is None or sent.generation != reply.generation:
                    # Of an engine that was given up, or a predecessor of this frontend.
                    continue
                self._forget(sent)
                settled.append((reply, sent.request))
        return settled

    def _forget(self, sent: _Sent) -> None:
        assert sent.request.slot is not None
        self._sent[sent.request.slot.index] = None
        self._own[sent.engine.engine] -= 1

    def _resolve(self, request: Request, reply: Reply) -> None:
        if reply.outcome == Outcome.ANSWERED:
            result = self._read(request, reply)
            request.release_slot()
            if request.claim():
                request.future.set_result(result)
        elif reply.outcome == Outcome.EXPIRED:
            request.abandon(DeadlineExceeded("the deadline passed before batch"))
        elif reply.outcome == Outcome.UNDECODED:
            self._on_undecoded(request)
        else:
            # A cancelled one has nobody who would hear it.
            request.abandon(PipelineError("a batch failed; the engine's log says why"))

    def _read(self, request: Request, reply: Reply) -> Result:
        block, slot, stamps = self._block, reply.slot, request.stamps
        stamps.decoded, stamps.batched, stamps.forward_start, stamps.forward_end = reply[-4:]
        # Copied: the slot's next image writes there.
        count = self._classes
        return Result(block.scores[slot, :count].copy(), block.indices[slot, :count].copy(), reply.batch_fill)
