"""The engine's side of the shared slots: descriptors come in, batches of them go to the lanes, replies go out.

All of it runs on the engine's one thread: it reads the socket itself, so that no image waits for another thread.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import zmq
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.batcher import smoothed
from pipeline.block import SharedBlock
from pipeline.errors import PipelineError, Unavailable
from pipeline.request import Batch, Request, Stamps
from pipeline.shared import StatusPage
from pipeline.wire import (
    Descriptor,
    Outcome,
    Reply,
    Sender,
    caller,
    control_of,
    pack_replies,
    received,
    replies_address,
    unpack_descriptor,
)

log = logging.getLogger(__name__)

# An idle engine wakes this often to show that it lives.
_BEAT_MS = 200
# How long to sleep while a batch may still fill.
_RIPEN_S = 50e-6


@dataclass(frozen=True, slots=True, eq=False)
class ArrivedSlot:
    """A slot as lanes see it; see `slots.Slot`."""

    tensor: torch.Tensor
    flat: torch.Tensor


class Arrival:
    """What is a `request.Request` in the embedded form: an image that waits in a slot of another process.

    The slot is its frontend's again with the reply, and there is one reply whatever happens, except where this process
    is about to end: the supervisor tells the frontends once it is gone, and only then nothing can read the slot.
    """

    # Written out, since one is made for each image: a dataclass takes twice as long.
    __slots__ = ("block", "descriptor", "queue", "slot", "stamps")

    def __init__(self, descriptor: Descriptor, slot: ArrivedSlot, block: SharedBlock, queue: "ArrivalQueue") -> None:
        self.descriptor = descriptor
        self.slot = slot
        self.block = block
        self.queue = queue
        self.stamps = Stamps(queued=descriptor.queued_ns)

    @property
    def geometry(self) -> Descriptor:
        """See `Request.geometry`; a descriptor carries its row."""
        return self.descriptor

    def claim(self) -> bool:
        """Whether a forward is to be spent on it; if not, it has been replied to."""
        slot = self.descriptor.slot
        if self.block.cancelled[slot] == self.descriptor.generation:
            self._drop(Outcome.CANCELLED, "cancelled")
        elif time.monotonic() >= self.block.deadline[slot]:
            self._drop(Outcome.EXPIRED, "expired")
        else:
            return True
        return False

    def release_slot(self) -> None:
        """Nothing yet: the reply gives the slot back."""

    def abandon(self, error: BaseException) -> None:
        """Reply that it failed."""
        if not isinstance(error, Unavailable):
            self.queue.settle(self.descriptor.sender, [self.reply(Outcome.FAILED)])

    def reply(self, outcome: Outcome, batch_fill: int = 0) -> Reply:
        """The reply to this image."""
        descriptor, stamps = self.descriptor, self.stamps
        return Reply(
            descriptor.slot,
            descriptor.generation,
            outcome,
            batch_fill,
            stamps.batched,
            stamps.forward_start,
            stamps.forward_end,
        )

    def _drop(self, outcome: Outcome, reason: str) -> None:
        metrics.DROPPED.labels("batch", reason).inc()
        self.queue.reply(self.descriptor.sender, [self.reply(outcome)])


@dataclass(slots=True, eq=False)
class ArrivalBatch(Batch):
    """A batch whose answers go to shared memory."""

    requests: Sequence[Arrival]  # type: ignore[assignment]

    def answer(self, scores: NDArray[np.float32], indices: NDArray[np.int32]) -> None:
        """Write each image's row where its frontend looks for it, then tell the frontends, one message each."""
        replies: dict[Sender, list[Reply]] = {}
        count, fill = scores.shape[1], len(self)
        for row, arrival in enumerate(self.requests):
            block, descriptor = arrival.block, arrival.descriptor
            block.scores[descriptor.slot, :count] = scores[row]
            block.indices[descriptor.slot, :count] = indices[row]
            replies.setdefault(descriptor.sender, []).append(arrival.reply(Outcome.ANSWERED, fill))
        queue = self.requests[0].queue
        for sender, each in replies.items():
            queue.settle(sender, each)


class ArrivalQueue:
    """What is a `batcher.Batcher` in the embedded form, with the same meaning.

    Args:
        socket: where descriptors and the supervisor's messages come in.
        blocks: of each frontend.
        base: see `wire.new_base`.
        engine: index of this engine.
        on_control: takes the supervisor's messages.
        on_idle: called once no slot of a frontend that has died will be read or written any more.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        blocks: Sequence[SharedBlock],
        page: StatusPage,
        base: str,
        engine: int,
        *,
        batch_size: int,
        max_wait_ms: float = 0.0,
        on_control: Callable[[bytes], None],
        on_idle: Callable[[Sender], None],
    ) -> None:
        self.batch_size = batch_size
        self._socket = socket
        self._blocks = blocks
        self._slots = [[_arrived_slot(pixels) for pixels in block.pixels] for block in blocks]
        self._page = page
        self._base = base
        self._engine = engine
        self._max_wait_ns = max_wait_ms * 1e6
        self._on_control = on_control
        self._on_idle = on_idle
        self._queue: deque[Arrival] = deque()
        self._closed = False
        self._gone: set[Sender] = set()
        self._running: Counter[Sender] = Counter()
        self._reply_sockets: dict[Sender, zmq.Socket[bytes]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def finished(self) -> bool:
        """Closed, and nothing is left to take."""
        return self._closed and not self._queue

    @property
    def seconds_per_batch(self) -> float:
        """See `Batcher`."""
        return float(self._page.seconds_per_batch[self._engine])

    def put(self, request: Request) -> bool:
        """False: whoever is in this process cannot submit, since images come by the socket."""
        return False

    def close(self) -> None:
        """Have the engine's thread end once nothing is queued. From any thread."""
        self._closed = True

    def note_batch(self, seconds: float) -> None:
        """See `Batcher.note_batch`; frontends read the pace from the page."""
        self._page.seconds_per_batch[self._engine] = smoothed(self.seconds_per_batch, seconds)

    def beat(self, since_ns: int) -> None:
        """Tell the supervisor, which replaces an engine that hangs."""
        self._page.heartbeat[self._engine] = since_ns / 1e9

    def fail_all(self, error: PipelineError) -> None:
        """Nothing: the process ends, and the supervisor tells the frontends."""

    def take(self, timeout_s: float | None) -> ArrivalBatch | None:
        """See `Batcher.take`; returns None now and then, also if it may wait for ever."""
        self._receive()
        if not self._queue:
            if timeout_s is None:
                self._socket.poll(_BEAT_MS)
            else:
                time.sleep(timeout_s)
            self._receive()
        if not self._queue:
            return None
        if not self._is_ripe():
            time.sleep(_RIPEN_S)
            return None
        taken = [self._queue.popleft() for _ in range(min(self.batch_size, len(self._queue)))]
        live = [arrival for arrival in taken if self._is_current(arrival) and arrival.claim()]
        if not live:
            return None
        for arrival in live:
            self._running[arrival.descriptor.sender] += 1
        batch = ArrivalBatch(live)
        batch.stamp("batched")
        return batch

    def settle(self, sender: Sender, replies: Sequence[Reply]) -> None:
        """Give slots that were in a batch back to their frontend."""
        self._running[sender] -= len(replies)
        self.reply(sender, replies)

    def reply(self, sender: Sender, replies: Sequence[Reply]) -> None:
        """Give slots back to their frontend."""
        if sender in self._gone:
            self._confirm_if_idle(sender)
            return
        socket = self._reply_sockets.get(sender)
        if socket is None:
            socket = self._reply_sockets[sender] = caller(zmq.PUSH, replies_address(self._base, sender))
        socket.send(pack_replies(replies))

    def forget(self, sender: Sender) -> None:
        """A frontend has died: nothing of it is begun any more, and `on_idle` is called once nothing is under way."""
        self._gone.add(sender)
        if (socket := self._reply_sockets.pop(sender, None)) is not None:
            socket.close()
        self._confirm_if_idle(sender)

    def _confirm_if_idle(self, sender: Sender) -> None:
        if not self._running[sender]:
            self._on_idle(sender)

    def _receive(self) -> None:
        for message in received(self._socket):
            control = control_of(message)
            if control is None:
                self._admit(unpack_descriptor(message))
            else:
                self._on_control(control)

    def _admit(self, descriptor: Descriptor) -> None:
        frontend, slot = descriptor.sender.frontend, descriptor.slot
        self._queue.append(Arrival(descriptor, self._slots[frontend][slot], self._blocks[frontend], self))

    def _is_current(self, arrival: Arrival) -> bool:
        """Whether its frontend lives. The kernel may hold messages of a dead one back for a while."""
        return arrival.descriptor.sender not in self._gone

    def _is_ripe(self) -> bool:
        """Whether the batch is full, or its oldest image has waited long enough."""
        if not self._max_wait_ns or len(self._queue) >= self.batch_size or self._closed:
            return True
        return time.monotonic_ns() - self._queue[0].stamps.queued >= self._max_wait_ns


def _arrived_slot(pixels: torch.Tensor) -> ArrivedSlot:
    """Of uint8 [S, S, 3]."""
    return ArrivedSlot(pixels.permute(2, 0, 1), pixels.view(-1))
