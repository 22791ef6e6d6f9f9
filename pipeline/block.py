"""One frontend's block of shared slots, as frontends and engines see it: headers, results and pixels."""

import math
import mmap
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.options import MAX_TOP_K
from pipeline.shared import HEADER, Layout


class SharedBlock:
    """One frontend's block, mapped.

    Attributes:
        deadline: float64 [slots], seconds of CLOCK_MONOTONIC. Written by the frontend.
        generation: uint32 [slots], counts how often the slot was sent. Written by the frontend.
        cancelled: uint32 [slots], the generation whose caller has left. Written by the frontend.
        scores, indices: float32 and int32 [slots, MAX_TOP_K]. Written by the engine.
        pixels: uint8 [slots, S, S, 3]. Written by the frontend.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.layout = layout
        memory = mmap.mmap(fd, layout.size)
        headers = np.frombuffer(memory, HEADER, layout.slots)
        self.deadline: NDArray[np.float64] = headers["deadline"]
        self.generation: NDArray[np.uint32] = headers["generation"]
        self.cancelled: NDArray[np.uint32] = headers["cancelled"]
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


def _table(memory: mmap.mmap, dtype: type[Any], layout: Layout, offset: int) -> NDArray[Any]:
    table: NDArray[Any] = np.frombuffer(memory, dtype, layout.slots * MAX_TOP_K, offset)
    return table.reshape(layout.slots, MAX_TOP_K)
