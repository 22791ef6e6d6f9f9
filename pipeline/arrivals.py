"""The engine's side of the shared slots: descriptors come in, batches of them go to the lanes, replies go out.

All of it runs on the engine's one thread: it reads the socket itself, so that no image waits for another thread.
"""

import logging
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

import zmq

from pipeline.arrival import Arrival, ArrivalBatch
from pipeline.batcher import share_of, smoothed
from pipeline.block import SharedBlock
from pipeline.errors import PipelineError
from pipeline.gpu_decode import GpuDecoder
from pipeline.gpu_open import GpuDecode
from pipeline.pipes import ReplyPipes, messages
from pipeline.request import Request
from pipeline.shared import StatusPage
from pipeline.wire import (
    Descriptor,
    EngineId,
    Outcome,
    Reply,
    Sender,
    pack_replies,
    received,
    unpack_descriptor,
)

log = logging.getLogger(__name__)

# An idle engine wakes this often to show that it lives.
_BEAT_MS = 200
# A busy engine looks for orders every so many turns of its loop: not to find one took 7 % of the thread's time when it
# looked at each (py-spy, lanes that compute nothing).
_TURNS = 64
# How long to sleep while a batch may still fill.
_RIPEN_S = 50e-6


class ArrivalQueue:
    """What is a `batcher.Batcher` in the embedded form, with the same meaning.

    Args:
        engine: this one.
        descriptors: the reader of its pipe; see `pipes.Pipe`.
        orders: where the supervisor's messages come in.
        blocks: of each frontend.
        replies: the writers of the frontends' pipes.
        on_order: takes the supervisor's messages.
        on_idle: called once no slot of a frontend that has died will be read or written any more.
    """

    def __init__(
        self,
        engine: EngineId,
        descriptors: socket.socket,
        orders: "zmq.Socket[bytes]",
        blocks: Sequence[SharedBlock],
        page: StatusPage,
        replies: Sequence[socket.socket],
        *,
        batch_size: int,
        max_wait_ms: float = 0.0,
        on_order: Callable[[bytes], None],
        on_idle: Callable[[Sender], None],
    ) -> None:
        self.batch_size = batch_size
        self._descriptors = descriptors
        self._orders = orders
        self._blocks = blocks
        # Of each frontend's slots, uint8 [S * S * 3] and its address.
        self._slots = [[(flat, flat.data_ptr()) for flat in block.pixels.flatten(1)] for block in blocks]
        self._page = page
        self._engine, self._incarnation = engine
        self._max_wait_ns = max_wait_ms * 1e6
        self._on_order = on_order
        self._on_idle = on_idle
        self._queue: deque[Arrival] = deque()
        self._decoder: GpuDecoder[Arrival] | None = None
        self._decoded: deque[Arrival] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        for each in (descriptors, orders, self._bell):
            self._poller.register(each, zmq.POLLIN)
        self._closed = False
        self._turns = 0
        self._gone: set[Sender] = set()
        self._running: Counter[Sender] = Counter()
        self._replies = ReplyPipes(replies)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def finished(self) -> bool:
        """Closed, and nothing is left to take."""
        is_decoded = self._decoder is None or self._decoder.is_empty
        return self._closed and is_decoded and not self._decoded and not self._queue

    def decode_with(self, gpu: GpuDecode) -> None:
        """Have a GPU decode the files that come, from now on. Without it, frontends are told to do so themselves."""
        self._decoder = GpuDecoder(gpu.decoder, gpu.rows, gpu.most, self._on_decoded)

    @property
    def seconds_per_batch(self) -> float:
        """See `Batcher`."""
        return float(self._page.seconds_per_batch[self._engine])

    def put(self, *requests: Request) -> bool:
        """False: whoever is in this process cannot submit, since images come by the socket."""
        return False

    def close(self) -> None:
        """Have the engine's thread end once nothing is queued. From any thread."""
        self._closed = True

    def note_batch(self, seconds: float) -> None:
        """See `Batcher.note_batch`; frontends read the pace from the page."""
        self._page.seconds_per_batch[self._engine] = smoothed(self.seconds_per_batch, seconds)

    def beat(self, since_ns: int) -> None:
        """Tell the supervisor, which replaces an engine that hangs; a decoder that hangs is as bad."""
        decoding_since_ns = self._decoder.begun_ns if self._decoder is not None else 0
        self._page.heartbeat[self._engine] = min(since_ns, decoding_since_ns or since_ns) / 1e9

    def fail_all(self, error: PipelineError) -> None:
        """Nothing: the process ends, and the supervisor tells the frontends."""

    def take(self, timeout_s: float | None, lanes: int = 1) -> ArrivalBatch | None:
        """See `Batcher.take`; returns None now and then, also if it may wait for ever."""
        self._receive()
        if not self._queue:
            if timeout_s is None:
                self._sleep()
            else:
                time.sleep(timeout_s)
            self._receive()
        if not self._queue:
            return None
        if not self._is_ripe():
            time.sleep(_RIPEN_S)
            return None
        taken = [self._queue.popleft() for _ in range(share_of(len(self._queue), lanes, self.batch_size))]
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
        self._replies.send(sender.frontend, pack_replies(replies))

    def forget(self, sender: Sender) -> None:
        """A frontend has died: nothing of it is begun any more, and `on_idle` is called once nothing is under way."""
        self._gone.add(sender)
        self._replies.forget(sender.frontend)
        self._confirm_if_idle(sender)

    def _confirm_if_idle(self, sender: Sender) -> None:
        if not self._running[sender]:
            self._on_idle(sender)

    def _on_decoded(self, arrivals: Sequence[Arrival]) -> None:
        """On the decoder's thread: have the engine's thread look."""
        self._decoded.extend(arrivals)
        os.eventfd_write(self._bell, 1)

    def gather(self) -> None:
        """See `Batcher.gather`."""
        self._receive()

    def _sleep(self) -> None:
        """Until something comes, or a while."""
        if self._bell in dict(self._poller.poll(_BEAT_MS)):
            # First the bell, then the images: one that comes in between rings again.
            os.eventfd_read(self._bell)
        self._turns = -1  # an order may have come

    def _receive(self) -> None:
        self._replies.send_rest()
        self._take_decoded()
        for message in messages(self._descriptors):
            self._admit(unpack_descriptor(message))
        self._turns += 1
        if self._turns % _TURNS == 0:
            for message in received(self._orders):
                self._on_order(message)

    def _admit(self, descriptor: Descriptor) -> None:
        frontend, slot = descriptor.sender.frontend, descriptor.slot
        if descriptor.sender in self._gone or descriptor.incarnation != self._incarnation:
            # From a frontend that has died, whose slot is its successor's by now, or for an engine that has: the
            # supervisor has told its frontend so.
            return
        arrival = Arrival(descriptor, self._slots[frontend][slot], self._blocks[frontend], self)
        if arrival.encoded is None:
            self._queue.append(arrival)
            return
        # Under way, like what is on a lane: its slot is being read.
        self._running[descriptor.sender] += 1
        if self._decoder is not None:
            self._decoder.put(arrival)
        else:
            self.settle(descriptor.sender, [arrival.reply(Outcome.UNDECODED)])

    def _take_decoded(self) -> None:
        while self._decoded:
            self._admit_decoded(self._decoded.popleft())

    def _admit_decoded(self, arrival: Arrival) -> None:
        sender = arrival.descriptor.sender
        if sender in self._gone:
            arrival.release_slot()
            self.settle(sender, [arrival.reply(Outcome.FAILED)])
        elif arrival.row_gpu is None and not arrival.is_dead():
            self.settle(sender, [arrival.reply(Outcome.UNDECODED)])
        else:
            self._running[sender] -= 1
            self._queue.append(arrival)

    def _is_current(self, arrival: Arrival) -> bool:
        """Whether its frontend lives."""
        is_current = arrival.descriptor.sender not in self._gone
        if not is_current:
            arrival.release_slot()
        return is_current

    def _is_ripe(self) -> bool:
        """Whether the batch is full, or its oldest image has waited long enough."""
        if not self._max_wait_ns or len(self._queue) >= self.batch_size or self._closed:
            return True
        return time.monotonic_ns() - self._queue[0].stamps.queued >= self._max_wait_ns
