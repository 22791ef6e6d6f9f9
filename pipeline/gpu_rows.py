"""Rows of device memory, each as large as a slot, that a GPU decodes into and lanes copy from."""

from collections import deque
from collections.abc import Callable, Sequence

import torch


class GpuRow:
    """Room for the pixels of one image.

    Attributes:
        flat: uint8 [S * S * 3], line by line, as `slots.Slot.flat`.
        address: of the first byte, on the device.
    """

    __slots__ = ("_rows", "address", "flat")

    def __init__(self, rows: "GpuRows", pixels: torch.Tensor) -> None:
        self._rows = rows
        self.flat = pixels.view(-1)
        self.address = pixels.data_ptr()

    def release(self) -> None:
        """Give the row back: nothing reads it any more. From any thread."""
        self._rows.release(self)


class GpuRows:
    """Hands out rows to one thread, and takes them back from any.

    Args:
        count: number of rows.
        canvas: side S of a slot's canvas, in pixels.

    Attributes:
        on_release: called, on the thread that gives a row back.
    """

    def __init__(self, count: int, canvas: int, device: torch.device) -> None:
        block = torch.zeros((count, canvas, canvas, 3), dtype=torch.uint8, device=device)
        self.on_release: Callable[[], None] = _nothing
        # Appending and popping need no lock of their own.
        self._free = deque(GpuRow(self, pixels) for pixels in block)

    def __len__(self) -> int:
        """Rows that are free."""
        return len(self._free)

    def take(self, count: int) -> Sequence[GpuRow]:
        """`count` of the free rows; the caller has seen that there are so many, and is the only one who takes."""
        return [self._free.popleft() for _ in range(count)]

    def release(self, row: GpuRow) -> None:
        """See `GpuRow.release`."""
        self._free.append(row)
        self.on_release()


def _nothing() -> None:
    """For nobody who waits."""
