"""Memory that frontends and engines share: each frontend's slots, and one page of figures about the engines.

The supervisor makes all of it once, as anonymous files whose descriptors are passed on: nothing has a name that could
be left behind, and a process that is replaced finds the same memory again.
"""

import math
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.options import MAX_TOP_K

_PAGE_BYTES = mmap.PAGESIZE
# One cache line a slot, so that two processes that write to neighbours do not take turns at it.
_HEADER = np.dtype(
    {
        "names": ["deadline", "batched", "forward_start", "forward_end", "generation", "cancelled"],
        "formats": ["<f8", "<i8", "<i8", "<i8", "<u4", "<u4"],
        "itemsize": 64,
    }
)


def anonymous_file(name: str) -> int:
    """Descriptor of a new, empty file in memory; `name` is for people who look into /proc."""
    return os.memfd_create(f"warmlane-{name}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a frontend's block is divided.

    Attributes:
        slots: number of slots.
        canvas: side S of a slot's canvas, in pixels.
    """

    slots: int
    canvas: int

    @property
    def slot_bytes(self) -> int:
        """Pixels of one slot: 3 * S * S."""
        return 3 * self.canvas**2

    @property
    def pixels_at(self) -> int:
        """Where the pixels begin, on a page of their own: headers and results come before."""
        before = self.slots * (_HEADER.itemsize + MAX_TOP_K * 8)
        return math.ceil(before / _PAGE_BYTES) * _PAGE_BYTES

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return math.ceil((self.pixels_at + self.slots * self.slot_bytes) / _PAGE_BYTES) * _PAGE_BYTES

    def allocate(self, fd: int) -> None:
        """Give the file its size, and its memory at once.

        Raises:
            OSError: there is not so much memory.
        """
        os.posix_fallocate(fd, 0, self.size)


class SharedBlock:
    """One frontend's block, mapped.

    Attributes:
        deadline: float64 [slots], seconds of CLOCK_MONOTONIC. Written by the frontend.
        generation: uint32 [slots], counts how often the slot was sent. Written by the frontend.
        cancelled: uint32 [slots], 1 once the caller has left. Written by the frontend.
        batched, forward_start, forward_end: int64 [slots], nanoseconds; see `request.Stamps`. Written by the engine.
        scores, indices: float32 and int32 [slots, MAX_TOP_K]. Written by the engine.
        pixels: uint8 [slots, S, S, 3]. Written by the frontend.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        memory = mmap.mmap(fd, layout.size)
        headers = np.frombuffer(memory, _HEADER, layout.slots)
        self.deadline: NDArray[np.float64] = headers["deadline"]
        self.generation: NDArray[np.uint32] = headers["generation"]
        self.cancelled: NDArray[np.uint32] = headers["cancelled"]
        self.batched: NDArray[np.int64] = headers["batched"]
        self.forward_start: NDArray[np.int64] = headers["forward_start"]
        self.forward_end: NDArray[np.int64] = headers["forward_end"]
        self.scores = _table(memory, np.float32, layout, headers.nbytes)
        self.indices = _table(memory, np.int32, layout, headers.nbytes + self.scores.nbytes)
        pixels = torch.frombuffer(memory, dtype=torch.uint8, offset=layout.pixels_at)
        shape = (layout.slots, layout.canvas, layout.canvas, 3)
        self.pixels = pixels[: math.prod(shape)].view(shape)
        self._whole = torch.frombuffer(memory, dtype=torch.uint8)

    def register(self) -> None:
        """Page-lock the block for copies to the GPU that need not wait.

        Raises:
            RuntimeError: CUDA refused.
        """
        size = self._whole.numel()
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        error = cudart.cudaHostRegister(self._whole.data_ptr(), size, 0)
        if int(error):
            raise RuntimeError(f"cudaHostRegister of {size} bytes: error {int(error)}")
        assert self.pixels.is_pinned()


class StatusPage:
    """What processes tell each other without messages. Every number has one writer.

    Attributes:
        heartbeat: float64 [engines], seconds of CLOCK_MONOTONIC; all batches that began earlier have ended.
        seconds_per_batch: float64 [engines], pace of recent batches; 0 before the first.
        in_flight: float64 [frontends, engines], images that a frontend has sent and that are not answered.
    """

    def __init__(self, fd: int, frontends: int, engines: int) -> None:
        count = 2 * engines + frontends * engines
        if os.fstat(fd).st_size == 0:
            os.posix_fallocate(fd, 0, 8 * count)
        numbers = np.frombuffer(mmap.mmap(fd, 8 * count), np.float64)
        self.heartbeat = numbers[:engines]
        self.seconds_per_batch = numbers[engines : 2 * engines]
        self.in_flight = numbers[2 * engines :].reshape(frontends, engines)


def _table(memory: mmap.mmap, dtype: type[Any], layout: Layout, offset: int) -> NDArray[Any]:
    table: NDArray[Any] = np.frombuffer(memory, dtype, layout.slots * MAX_TOP_K, offset)
    return table.reshape(layout.slots, MAX_TOP_K)
