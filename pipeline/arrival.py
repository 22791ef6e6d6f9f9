"""One image that has come from another process, as the engine sees it, and the batch that carries some."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.block import SharedBlock
from pipeline.errors import Unavailable
from pipeline.gpu_rows import GpuRow
from pipeline.request import Batch, Encoded, Stamps
from pipeline.wire import Descriptor, Outcome, Reply, Sender

if TYPE_CHECKING:
    from pipeline.arrivals import ArrivalQueue


class Arrival:
    """What is a `request.Request` in the embedded form: an image that waits in a slot of another process.

    The slot is its frontend's again with the reply, and there is one reply whatever happens, except where this process
    is about to end: the supervisor tells the frontends once it is gone, and only then nothing can read the slot.
    """

    # Written out, since one is made for each image: a dataclass takes twice as long.
    __slots__ = ("block", "descriptor", "encoded", "file_address", "flat", "queue", "row_gpu", "stamps")

    def __init__(
        self, descriptor: Descriptor, slot: tuple[torch.Tensor, int], block: SharedBlock, queue: "ArrivalQueue"
    ) -> None:
        self.descriptor = descriptor
        self.flat, self.file_address = slot  # uint8 [S * S * 3], and where it begins; see `gpu_decode.Decodable`
        self.block = block
        self.queue = queue
        self.stamps = Stamps(queued=descriptor.queued_ns)
        self.encoded = Encoded(*descriptor.encoded) if descriptor.encoded[0] else None
        self.row_gpu: GpuRow | None = None

    @property
    def geometry(self) -> Descriptor:
        """See `Request.geometry`; a descriptor carries its row."""
        return self.descriptor

    @property
    def pixels(self) -> torch.Tensor:
        """See `Request.pixels`."""
        return self.flat if self.row_gpu is None else self.row_gpu.flat

    @property
    def address(self) -> int:
        """See `Request.address`."""
        return self.file_address if self.row_gpu is None else self.row_gpu.address

    @property
    def extent(self) -> tuple[int, int]:
        """See `gpu_decode.Decodable`."""
        row = self.descriptor.geometry
        return int(row[5]), int(row[2])

    def is_dead(self) -> bool:
        """See `Request.is_dead`."""
        return self._is_cancelled() or self._is_expired()

    def claim(self) -> bool:
        """Whether a forward is to be spent on it; if not, it has been replied to."""
        if self._is_cancelled():
            self._drop(Outcome.CANCELLED, "cancelled")
        elif self._is_expired():
            self._drop(Outcome.EXPIRED, "expired")
        else:
            return True
        return False

    def release_slot(self) -> None:
        """The row on the GPU only: the reply gives the slot back."""
        if self.row_gpu is not None:
            self.row_gpu.release()
            self.row_gpu = None

    def abandon(self, error: BaseException) -> None:
        """Reply that it failed."""
        self.release_slot()
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
            stamps.decoded,
            stamps.batched,
            stamps.forward_start,
            stamps.forward_end,
        )

    def _is_cancelled(self) -> bool:
        return bool(self.block.cancelled[self.descriptor.slot] == self.descriptor.generation)

    def _is_expired(self) -> bool:
        return bool(time.monotonic() >= self.block.deadline[self.descriptor.slot])

    def _drop(self, outcome: Outcome, reason: str) -> None:
        self.release_slot()
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
