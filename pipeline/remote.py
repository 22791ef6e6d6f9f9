"""What is `embedded.Pipeline` in the embedded form: decode threads here, engines in other processes."""

import socket
from collections import deque
from collections.abc import Callable, Sequence

from pipeline import metrics
from pipeline.block import SharedBlock
from pipeline.decoders import Decoders
from pipeline.dispatch import Dispatcher
from pipeline.errors import Unavailable
from pipeline.gpu_stage import GpuStage
from pipeline.headers import Limits
from pipeline.info import ModelInfo
from pipeline.pipes import messages
from pipeline.request import Request
from pipeline.shared import Layout, StatusPage
from pipeline.slots import SlotPool
from pipeline.wire import EngineId, Sender


class RemotePipeline:
    """See `backend.Backend`. Knows what is served once an engine has told; all but `submit` is for the event loop.

    Args:
        fd: of this frontend's block.
        replies: the reader of this frontend's pipe; see `pipes.Pipe`.
        descriptors: the writers of the engines' pipes.
        skip_decode: see `options.Options`.
    """

    def __init__(
        self,
        fd: int,
        page: StatusPage,
        sender: Sender,
        replies: socket.socket,
        descriptors: Sequence[socket.socket],
        *,
        limits: Limits,
        decode_threads: int,
        skip_decode: bool = False,
    ) -> None:
        self._fd = fd
        self._page = page
        self._sender = sender
        self._replies = replies
        self._descriptors = descriptors
        self._info: ModelInfo | None = None
        self._slots: SlotPool | None = None
        self._dispatcher: Dispatcher | None = None
        self._stage: GpuStage | None = None
        self._limits = limits
        self._is_complete = False
        self._on_release: Callable[[], None] | None = None
        self.decoders = Decoders(decode_threads, limits, self._send, skip=skip_decode, own_process=True)

    @property
    def info(self) -> ModelInfo:
        """See `backend.Backend.info`.

        Raises:
            Unavailable: nobody knows yet.
        """
        if self._info is None:
            raise Unavailable("the engine is starting")
        return self._info

    @property
    def slots(self) -> SlotPool:
        """See `backend.Backend.slots`.

        Raises:
            Unavailable: there are none yet.
        """
        if self._slots is None:
            raise Unavailable("the engine is starting")
        return self._slots

    def learn(self, info: ModelInfo, layout: Layout) -> None:
        """Take what an engine has told; slots exist from here on."""
        self._info = info
        self._stage = (self._stage or GpuStage(self._limits, self._send)) if info.gpu_decode else None
        if self._dispatcher is None:
            block = SharedBlock(self._fd, layout)
            self._slots = SlotPool(layout.slots, layout.canvas, block=block.pixels)
            self._slots.on_release = self._on_release
            self.decoders.slots = layout.slots
            self._dispatcher = Dispatcher(
                block,
                self._page,
                self._sender,
                self._replies,
                self._descriptors,
                classes=len(info.labels),
                on_undecoded=self._decode_here,
            )

    def use(self, engines: Sequence[EngineId]) -> None:
        """Send to these engines, which are warm, from now on; what any other was sent fails."""
        assert self._dispatcher is not None
        self._is_complete = self._is_complete or bool(engines)
        self._dispatcher.use(engines)

    def take_replies(self) -> None:
        """Handle what the engines have replied; what comes before the first news was for a dead predecessor."""
        if self._dispatcher is not None:
            self._dispatcher.take_replies()
        else:
            deque(messages(self._replies), maxlen=0)

    def check_serving(self) -> None:
        """See `backend.Backend.check_serving`."""
        if self._dispatcher is None or not self._dispatcher.engines:
            raise Unavailable("no engine is running" if self._is_complete else "the engine is starting")

    def submit(self, request: Request) -> None:
        """See `backend.Backend.submit`."""
        if self._stage is None or not self._stage.take(request, self.info):
            self.decoders.submit(request, self.info)

    def expected_wait_ms(self) -> int:
        """See `backend.Backend.expected_wait_ms`."""
        if self._dispatcher is None or not self._dispatcher.engines:
            return 0
        engines = [engine.engine for engine in self._dispatcher.engines]
        not_sent = self.slots.in_use - self._dispatcher.in_flight
        images = not_sent + float(self._page.in_flight[:, engines].sum())
        pace = float(self._page.seconds_per_batch[engines].mean())
        return round(1e3 * pace * images / self.info.batch_size / self.info.lanes / len(engines))

    def watch_slots(self, on_release: Callable[[], None]) -> None:
        """See `backend.Backend.watch_slots`."""
        self._on_release = self.decoders.on_room = on_release
        if self._slots is not None:
            self._slots.on_release = on_release

    def stop(self) -> None:
        """End the decode threads; nothing may be under way."""
        self.decoders.shutdown()
        if self._dispatcher is not None:
            self._dispatcher.close()

    def _decode_here(self, request: Request) -> None:
        """What an engine's GPU does not take after all; what is wrong with it, the decode threads tell its caller."""
        metrics.count_route("refused by the GPU")
        request.take_back()
        self.decoders.submit(request, self.info)

    def _send(self, request: Request) -> None:
        assert self._dispatcher is not None
        self._dispatcher.send(request)
