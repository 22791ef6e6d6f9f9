"""Slots: fixed pieces of one block of memory, each the canvas of one image on its way.

The number of slots bounds the images in flight: having none free is the service's back-pressure.
"""

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.errors import Overloaded


class Slot:
    """One canvas.

    Attributes:
        pixels: uint8 [S, S, 3], a view of the pool's block: where the decoder writes.
        tensor: uint8 [3, S, S], the same memory, channels last: as a model sees it.
        flat: uint8 [S * S * 3], the same memory, line by line: what a lane copies from.
        address: of its first byte.
        bytes: the same memory, for a file that a GPU is to decode.
    """

    def __init__(self, pool: "SlotPool", index: int, tensor: torch.Tensor) -> None:
        self.index = index
        self.tensor = tensor.permute(2, 0, 1)
        self.flat = tensor.view(-1)
        self.pixels: NDArray[np.uint8] = tensor.numpy()
        self.address = tensor.data_ptr()
        self.bytes = memoryview(self.pixels).cast("B")  # type: ignore[arg-type]
        self._pool = pool

    def release(self) -> None:
        """Give the slot back to its pool. Exactly once for each time it was taken."""
        self._pool.release(self)


class SlotPool:
    """Hands out slots, from any thread.

    Args:
        count: number of slots.
        canvas: side S of the square canvas, in pixels.
        pinned: page-lock the block, so that copies to a GPU need not wait; needs CUDA.
        block: uint8 [count, S, S, 3], memory to use; None takes some.
    """

    def __init__(self, count: int, canvas: int, *, pinned: bool = False, block: torch.Tensor | None = None) -> None:
        if block is None:
            block = torch.zeros((count, canvas, canvas, 3), dtype=torch.uint8, pin_memory=pinned)
        self.block = block
        self.slots = [Slot(self, index, self.block[index]) for index in range(count)]
        self.on_release: Callable[[], None] | None = None
        self._free = self.slots[::-1]
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        metrics.watch_slots(self)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot: 3 * S * S."""
        return self.block[0].numel()

    @property
    def in_use(self) -> int:
        """Slots that are taken at this moment."""
        return len(self._taken)

    def acquire(self, count: int = 1) -> list[Slot]:
        """Take `count` slots, all or none.

        Raises:
            Overloaded: fewer than `count` are free.
        """
        with self._lock:
            if len(self._free) < count:
                raise Overloaded(
                    f"{len(self._taken)} of {len(self.slots)} images are in flight, no room for {count} more (--slots)"
                )
            # What was given back last is still in the CPU's cache, and that is a tenth of a small image's decode time.
            taken = [self._free.pop() for _ in range(count)]
            self._taken.update(slot.index for slot in taken)
        return taken

    def release(self, slot: Slot) -> None:
        """Give one slot back. A slot that is not taken is a bug in the caller."""
        with self._lock:
            assert slot.index in self._taken, f"slot {slot.index} given back twice"
            self._taken.remove(slot.index)
            self._free.append(slot)
        if self.on_release is not None:
            self.on_release()
