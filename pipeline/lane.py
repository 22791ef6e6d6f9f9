"""Lanes: where batches run.

A lane owns its input and output buffers and runs one batch at a time. The engine asks for nothing but these three
steps, in this order, so that a lane may run in the caller's thread (a CPU) or merely start the work and be polled (a
GPU).
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.profiler import record_function

from pipeline.canvas import identity_row
from pipeline.graph import Program
from pipeline.profiling import FORWARD_MARK
from pipeline.request import Batch


class Lane(Protocol):
    """One place where a batch can run."""

    def start(self, batch: Batch) -> None:
        """Begin a batch, and release its slots once they have been read. May return before the batch is done."""

    def done(self) -> bool:
        """Whether the batch that was started has ended. Never waits."""

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Scores float32 [n, K] and classes int32 [n, K] of the batch's n real images; valid until the next `start`."""

    def run_example(self) -> None:
        """Run what lies in the buffers as a full batch; may return before the device is done. For checks at start."""


class CpuLane:
    """Runs in the engine's thread: `start` returns when the batch is done.

    Args:
        batch_size: largest batch. Nothing is padded: the program takes any size up to this one.
        canvas: side S of the slots, in pixels.
    """

    def __init__(self, program: Program, batch_size: int, canvas: int) -> None:
        self._run = program.run
        # Images lie in memory as rows of RGB pixels; the program sees [B, 3, S, S], channels last.
        pixels = torch.zeros((batch_size, canvas, canvas, 3), dtype=torch.uint8)
        self._canvas = pixels.permute(0, 3, 1, 2)
        self._rows = list(pixels.view(batch_size, -1).unbind(0))  # uint8 [S * S * 3] each
        self._geometry = torch.tensor([identity_row(canvas)] * batch_size, dtype=torch.float32)
        self._scores = torch.empty(0)
        self._indices = torch.empty(0)

    def start(self, batch: Batch) -> None:
        """Gather the slots, give them back, run."""
        size = len(batch)
        for row, request in enumerate(batch.requests):
            assert request.geometry is not None
            self._rows[row].copy_(request.pixels)
            self._geometry[row] = torch.tensor(request.geometry.row())
            request.release_slot()
        batch.stamp("forward_start")
        with record_function(FORWARD_MARK):
            self._scores, self._indices = self._run(self._canvas[:size], self._geometry[:size])
        batch.stamp("forward_end")

    def run_example(self) -> None:
        """See `Lane.run_example`."""
        self._run(self._canvas, self._geometry)

    def done(self) -> bool:
        """Always: see `start`."""
        return True

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """See `Lane.results`."""
        return self._scores.numpy(), self._indices.numpy()
