"""The two dataclasses that travel from the wire to the model and back: `Request`, and the `Batch` that carries some.

Between threads only `Request.future` is handed over. All times are CLOCK_MONOTONIC, so that processes can compare them.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.errors import DeadlineExceeded

if TYPE_CHECKING:
    from pipeline.canvas import Geometry
    from pipeline.gpu_rows import GpuRow
    from pipeline.headers import Header
    from pipeline.slots import Slot


@dataclass(slots=True)
class Stamps:
    """When each stage of a request ended, in nanoseconds of CLOCK_MONOTONIC; 0 where it has not."""

    received: int = 0
    decode_start: int = 0
    queued: int = 0
    decoded: int = 0  # by the GPU, which comes after the queue's entrance
    batched: int = 0
    forward_start: int = 0
    forward_end: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What the model says of one image.

    Attributes:
        scores: float32 [K], falling; K is the most that a caller may ask for, or the number of classes.
        indices: int32 [K], the class of each score.
        batch_fill: real images in the batch that carried this one.
    """

    scores: NDArray[np.float32]
    indices: NDArray[np.int32]
    batch_fill: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """What decoding did to a file: the decoder's account, without the pixels."""

    header: "Header"
    conversions: list[str]
    decoder: str


class Encoded(NamedTuple):
    """A JPEG file that lies in a slot, for a GPU to decode.

    Attributes:
        size: bytes of it.
        left, top: of the window that the crop needs, in pixels; its size is the geometry's extent.
    """

    size: int
    left: int
    top: int


@dataclass(slots=True, eq=False)
class Request:
    """One encoded image on its way.

    Attributes:
        image: the encoded bytes; dropped once decoded, or once they lie in the slot.
        model: key of the model that is to answer.
        slot: where the pixels go; None once it has been given back.
        deadline: seconds of `time.monotonic()`, infinite where the caller set none.
        future: resolved with a `Result`, failed with a `PipelineError`, or cancelled by the caller while pending.
        encoded: set while the slot holds a file instead of pixels.
        row_gpu: where a GPU has decoded it to; None if the pixels lie in the slot.
    """

    image: bytes
    model: str
    slot: "Slot | None"
    deadline: float = math.inf
    future: Future[Result] = field(default_factory=Future)
    decoding: Decoding | None = None
    geometry: "Geometry | None" = None
    stamps: Stamps = field(default_factory=Stamps)
    encoded: Encoded | None = None
    row_gpu: "GpuRow | None" = None

    def expired(self) -> bool:
        """Whether the caller's deadline has passed."""
        return time.monotonic() >= self.deadline

    def drop_if_dead(self, stage: str) -> bool:
        """Drop a cancelled or expired request before `stage` spends anything on it. True if it was dropped."""
        if self.future.cancelled():
            metrics.DROPPED.labels(stage, "cancelled").inc()
        elif self.expired():
            self.fail(DeadlineExceeded(f"the deadline passed before {stage}"))
            metrics.DROPPED.labels(stage, "expired").inc()
        else:
            return False
        self.release_slot()
        return True

    def release_slot(self) -> None:
        """Give the slot back, now that nothing reads or writes it any more; the row on the GPU too."""
        assert self.slot is not None, "a slot is given back once"
        self.release_row()
        slot, self.slot = self.slot, None
        slot.release()

    @property
    def pixels(self) -> torch.Tensor:
        """Where the pixels lie, uint8 [S * S * 3]: in the slot, or in a row on a GPU."""
        assert self.slot is not None
        return self.row_gpu.flat if self.row_gpu is not None else self.slot.flat

    @property
    def address(self) -> int:
        """Of the first byte of `pixels`."""
        assert self.slot is not None
        return self.row_gpu.address if self.row_gpu is not None else self.slot.address

    @property
    def file_address(self) -> int:
        """See `gpu_decode.Decodable`."""
        assert self.slot is not None
        return self.slot.address

    @property
    def extent(self) -> tuple[int, int]:
        """See `gpu_decode.Decodable`."""
        assert self.geometry is not None
        return self.geometry.x.extent, self.geometry.y.extent

    def take_back(self) -> None:
        """Have the file as `image` again: no GPU decodes it, and the slot is for the pixels."""
        assert self.slot is not None
        assert self.encoded is not None
        self.image = bytes(self.slot.bytes[: self.encoded.size])
        self.encoded = None

    def release_row(self) -> None:
        """Give the row on the GPU back, if there is one."""
        if self.row_gpu is not None:
            self.row_gpu.release()
            self.row_gpu = None

    def is_dead(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.cancelled() or self.expired()

    def claim(self) -> bool:
        """Take the request out of its caller's reach, unless the caller has cancelled it already."""
        return self.future.set_running_or_notify_cancel()

    def fail(self, error: BaseException) -> None:
        """Fail the caller's future, unless the caller has left."""
        if self.future.running() or self.claim():
            self.future.set_exception(error)

    def abandon(self, error: BaseException) -> None:
        """Fail the caller's future and give the slot back, if it is still held."""
        self.fail(error)
        if self.slot is not None:
            self.release_slot()


@dataclass(slots=True, eq=False)
class Batch:
    """The requests of one forward, all live: from here on they can no longer be cancelled."""

    requests: Sequence[Request]

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def begun_ns(self) -> int:
        """When it was formed, in nanoseconds of CLOCK_MONOTONIC."""
        return self.requests[0].stamps.batched

    def answer(self, scores: NDArray[np.float32], indices: NDArray[np.int32]) -> None:
        """Give each caller its row: float32 and int32 [n, K], of which the rows of this batch come first."""
        # Copied at once: the lane's buffers are written again by its next batch.
        scores, indices = scores[: len(self)].copy(), indices[: len(self)].copy()
        # All rows before any caller: a row too few fails the whole batch.
        results = [Result(scores[row], indices[row], len(self)) for row in range(len(self))]
        for request, result in zip(self.requests, results, strict=True):
            request.future.set_result(result)

    def stamp(self, stage: str) -> None:
        """Note the end of `stage` (a field of `Stamps`) for every request, now."""
        now = time.monotonic_ns()
        for request in self.requests:
            setattr(request.stamps, stage, now)
