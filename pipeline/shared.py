"""Memory that frontends and engines share: each frontend's block of slots, and one page of figures about the engines.

The supervisor makes all of it once, as anonymous files whose descriptors are passed on: nothing has a name that could
be left behind, and a process that is replaced finds the same memory again.
"""

import math
import mmap
import os
from dataclasses import dataclass

import numpy as np

from pipeline.options import MAX_TOP_K

_PAGE_BYTES = mmap.PAGESIZE
# The header of a slot. One cache line a slot, so that two processes that write to neighbours do not take turns at it.
HEADER = np.dtype(
    {
        "names": ["deadline", "generation", "cancelled"],
        "formats": ["<f8", "<u4", "<u4"],
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
        before = self.slots * (HEADER.itemsize + MAX_TOP_K * 8)
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


class StatusPage:
    """What processes tell each other without messages. Every number has one writer.

    Attributes:
        heartbeat: float64 [engines], seconds of CLOCK_MONOTONIC; all batches that began earlier have ended.
        frontend_heartbeat: float64 [frontends], seconds of CLOCK_MONOTONIC.
        seconds_per_batch: float64 [engines], pace of recent batches; 0 before the first.
        in_flight: float64 [frontends, engines], images that a frontend has sent and that are not answered.
    """

    def __init__(self, fd: int, frontends: int, engines: int) -> None:
        sizes = engines, engines, frontends, frontends * engines
        count = sum(sizes)
        if os.fstat(fd).st_size == 0:
            os.posix_fallocate(fd, 0, 8 * count)
        numbers = np.frombuffer(mmap.mmap(fd, 8 * count), np.float64)
        parts = np.split(numbers, np.cumsum(sizes)[:-1])
        self.heartbeat, self.seconds_per_batch, self.frontend_heartbeat, in_flight = parts
        self.in_flight = in_flight.reshape(frontends, engines)
