"""Lanes: where batches run.

A lane owns its input and output buffers and runs one batch at a time. The engine asks for nothing but these three
steps, in this order: a lane starts the work, elsewhere, and is polled.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.profiler import record_function

from pipeline.canvas import identity_row
from pipeline.graph import Program
from pipeline.profiling import FORWARD_MARK
from pipeline.request import Batch


class ForwardFailed(Exception):
    """A batch cannot be answered, and the lane can go on with others. The cause is the error of the forward."""


class Lane(Protocol):
    """One place where a batch can run."""

    def start(self, batch: Batch) -> None:
        """Begin a batch, and release its slots once they have been read. May return before the batch is done."""

    def done(self) -> bool:
        """Whether the batch that was started has ended. Never waits.

        Raises:
            ForwardFailed: it has, by an error.
        """

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Scores float32 [n, K] and classes int32 [n, K] of the batch's n real images; valid until the next `start`."""

    def run_example(self) -> None:
        """Run what lies in the buffers as a full batch; may return before the device is done. For checks at start."""


class CpuLane:
    """Runs batches on a thread of its own, so that several keep as many cores busy.

    Args:
        batch_size: largest batch. Nothing is padded: the program takes any size up to this one.
        canvas: side S of the slots, in pixels.
        threads: of one forward.
    """

    def __init__(self, program: Program, batch_size: int, canvas: int, threads: int = 1) -> None:
        self._run = program.run
        # Images lie in memory as rows of RGB pixels; the program sees [B, 3, S, S], channels last.
        pixels = torch.zeros((batch_size, canvas, canvas, 3), dtype=torch.uint8)
        self._canvas = pixels.permute(0, 3, 1, 2)
        self._rows = list(pixels.view(batch_size, -1).unbind(0))  # uint8 [S * S * 3] each
        self._geometry = torch.tensor([identity_row(canvas)] * batch_size, dtype=torch.float32)
        # What the number of OpenMP's threads is, each thread has to be told.
        self._thread = ThreadPoolExecutor(1, "lane", initializer=torch.set_num_threads, initargs=(threads,))
        self._running: Future[tuple[Tensor, Tensor]] = Future()

    def start(self, batch: Batch) -> None:
        """Gather the slots, give them back, and have the lane's thread run."""
        size = len(batch)
        for row, request in enumerate(batch.requests):
            assert request.geometry is not None
            self._rows[row].copy_(request.pixels)
            self._geometry[row] = torch.tensor(request.geometry.row())
            request.release_slot()
        self._running = self._thread.submit(self._forward, batch, size)

    def run_example(self) -> None:
        """See `Lane.run_example`. Here it waits, and lets the caller see what the forward raises."""
        self._thread.submit(self._forward, None, len(self._rows)).result()

    def done(self) -> bool:
        """See `Lane.done`."""
        if not self._running.done():
            return False
        error = self._running.exception()
        if isinstance(error, torch.AcceleratorError):
            # The model uses a device of its own, and that is lost.
            raise error
        if error is not None:
            raise ForwardFailed(str(error)) from error
        return True

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """See `Lane.results`."""
        scores, indices = self._running.result()
        return scores.numpy(), indices.numpy()

    def _forward(self, batch: Batch | None, size: int) -> tuple[Tensor, Tensor]:
        if batch is not None:
            batch.stamp("forward_start")
        with torch.inference_mode(), record_function(FORWARD_MARK):
            outputs = self._run(self._canvas[:size], self._geometry[:size])
        if batch is not None:
            batch.stamp("forward_end")
        return outputs
