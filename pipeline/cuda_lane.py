"""A lane on a GPU: a stream, static buffers and captured graphs. Nothing here waits for the device.

    copy the pixels in -> replay a graph -> copy the top-k out -> record an event that the engine polls

Each lane captures on its own stream into a memory pool of its own, so that lanes may replay at the same time. It has a
graph of the full batch and one for each smaller size that was asked for: a batch runs on the smallest that holds it.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import metrics
from pipeline.canvas import identity_row
from pipeline.cuda_driver import TimingEvent, copy_async, graph_launcher, merged
from pipeline.graph import Forward, Program
from pipeline.request import Batch

log = logging.getLogger(__name__)

# A graph's memory, by a handle whose type torch keeps to itself.
Pool = Any
Results = tuple[NDArray[np.float32], NDArray[np.int32]]

# Runs before a capture, on the capture's stream: libraries choose their kernels and allocate their workspaces here.
_WARM_UP_RUNS = 3
# Where `Geometry.row` has the window's height.
_LINES = 2


class _Forward:
    """The program at one batch size: replayed where it could be captured, launched kernel by kernel where not.

    The small copies, geometry in and top-k out, belong to the graph: queued one by one they cost the host as much as
    the launch.

    Args:
        canvas_gpu, geometry_gpu: see `Program.run`; the rows that this size computes.
        geometry_host: where those of the geometry come from, page-locked.
        pool: of the graph's memory; forwards that share one never run at the same time. None makes one.

    Attributes:
        rows: images computed.
        scores_gpu, indices_gpu: float32 and int32 [rows, K], valid until the next forward of the lane.
        results: the same in host memory.
        capture_error: see `CudaLane`.
    """

    def __init__(
        self,
        run: Forward,
        canvas_gpu: torch.Tensor,
        geometry_gpu: torch.Tensor,
        geometry_host: torch.Tensor,
        *,
        stream: torch.cuda.Stream,
        pool: Pool = None,
    ) -> None:
        self.rows = len(canvas_gpu)
        self.capture_error = ""
        self._run = run
        self._inputs = canvas_gpu, geometry_gpu
        self._geometry_host = geometry_host
        self._stream, self._stream_handle = stream, stream.cuda_stream
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                self.scores_gpu, self.indices_gpu = run(*self._inputs)
        stream.synchronize()
        self._scores_host = torch.empty(self.scores_gpu.shape, dtype=torch.float32, pin_memory=True)
        self._indices_host = torch.empty(self.indices_gpu.shape, dtype=torch.int32, pin_memory=True)
        self.results: Results = (self._scores_host.numpy(), self._indices_host.numpy())
        self._graph = self._capture(pool)
        self._replay = graph_launcher(self._graph, stream) if self._graph is not None else None

    @property
    def pool(self) -> Pool:
        """See `_Forward`."""
        return self._graph.pool() if self._graph is not None else None

    def launch(self) -> None:
        """Queue it on the stream."""
        if self._replay is not None:
            self._replay()
            return
        torch.cuda.set_stream(self._stream)
        self._queue()

    def _queue(self) -> None:
        """On the current stream, as it is captured."""
        _copy(self._inputs[1], self._geometry_host, self._stream_handle)
        self.scores_gpu, self.indices_gpu = self._run(*self._inputs)
        _copy(self._scores_host, self.scores_gpu, self._stream_handle)
        _copy(self._indices_host, self.indices_gpu, self._stream_handle)

    def _capture(self, pool: Pool) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile; only this one's calls can spoil the capture. The outer stream is
            # there to be restored: a capture that fails leaves its own current.
            with (
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, stream=self._stream, pool=pool, capture_error_mode="thread_local"),
            ):
                self._queue()
        except Exception as error:
            # A user's model may do what no graph can hold; it serves all the same, launch by launch.
            self.capture_error = str(error).splitlines()[0][:200]
            log.warning("the CUDA graph of %d could not be captured: %s", self.rows, self.capture_error)
            return None
        return graph


class CudaLane:
    """Runs batches on one stream of one GPU, padded to a fixed size.

    Args:
        batch_size: most rows of a forward; rows without an image are computed and ignored.
        canvas: side S of the slots, in pixels.
        smaller: other sizes to have a graph for; those of `batch_size` and above are left out.

    Attributes:
        sizes: that there are forwards for, ascending.
        capture_error: why there is no graph, in words; empty if there is. Without one, kernels are launched one by one.
    """

    def __init__(
        self, program: Program, batch_size: int, canvas: int, device: torch.device, smaller: Sequence[int] = ()
    ) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream_handle: int = self._stream.cuda_stream
        # Images lie in memory as rows of RGB pixels; the program sees [B, 3, S, S], channels last.
        pixels_gpu = torch.zeros((batch_size, canvas, canvas, 3), dtype=torch.uint8, device=device)
        self._canvas_gpu = pixels_gpu.permute(0, 3, 1, 2)
        self._line_bytes = canvas * 3
        self._row_bytes = canvas * self._line_bytes
        self._addresses = [row.data_ptr() for row in pixels_gpu]
        self._geometry_host = torch.tensor([identity_row(canvas)] * batch_size, dtype=torch.float32).pin_memory()
        self._geometry_rows: NDArray[np.float32] = self._geometry_host.numpy()
        self._geometry_gpu = self._geometry_host.to(device)
        self._begun, self._copied, self._ended = (TimingEvent(self._stream) for _ in range(3))
        self._batch: Batch | None = None
        self._forwards = self._warm_up(program.run, batch_size, smaller)
        self._full = self._running = self._forwards[-1]
        self.capture_error = self._full.capture_error

    @property
    def sizes(self) -> tuple[int, ...]:
        """See `CudaLane`."""
        return tuple(forward.rows for forward in self._forwards)

    def start(self, batch: Batch) -> None:
        """Queue the batch on the stream and return."""
        try:
            self._begun.record(self._stream_handle)
            self._copy_in(batch)
            self._copied.record(self._stream_handle)
            self._running = next(forward for forward in self._forwards if forward.rows >= len(batch))
            self._forward()
            self._ended.record(self._stream_handle)
        except torch.OutOfMemoryError:
            # The slots are about to be given back: nothing may still read them.
            self._stream.synchronize()
            raise
        self._batch = batch

    def run_example(self) -> None:
        """See `Lane.run_example`."""
        self._running = self._full
        with torch.cuda.stream(self._stream):
            self._forward()

    def done(self) -> bool:
        """Whether the top-k have arrived in host memory. Releases the slots and stamps the batch when they have."""
        if not self._ended.is_over():
            return False
        if self._batch is not None:
            self._finish(self._batch)
            self._batch = None
        return True

    def results(self) -> Results:
        """See `Lane.results`; padding rows come last."""
        return self._running.results

    def _copy_in(self, batch: Batch) -> None:
        requests, stream = batch.requests, self._stream_handle
        geometries = [request.geometry.row() for request in requests if request.geometry is not None]
        self._geometry_rows[: len(requests)] = geometries
        targets_gpu, sources_gpu = [], []
        for target, request, geometry in zip(self._addresses, requests, geometries, strict=False):
            if request.row_gpu is not None:
                targets_gpu.append(target)
                sources_gpu.append(request.address)
            else:
                # Only the window's lines: the graph gives those below no weight, whatever an earlier image left there.
                copy_async(target, request.address, self._line_bytes * int(geometry[_LINES]), stream)
        for target, source, size in merged(targets_gpu, sources_gpu, self._row_bytes):
            copy_async(target, source, size, stream)

    def _forward(self) -> None:
        self._running.launch()

    def _finish(self, batch: Batch) -> None:
        copy_ns = self._begun.ns_until(self._copied)
        batch.stamp("forward_end")
        metrics.PADDING_ROWS.inc(self._running.rows - len(batch))
        for request in batch.requests:
            request.stamps.forward_start = min(request.stamps.batched + copy_ns, request.stamps.forward_end)
            request.release_slot()

    def _warm_up(self, run: Forward, batch_size: int, smaller: Sequence[int]) -> list[_Forward]:
        """By size. Only a graph makes a smaller one worth while, since launching costs the host the same at any."""
        inputs = self._canvas_gpu, self._geometry_gpu, self._geometry_host
        full = _Forward(run, *inputs, stream=self._stream)
        found = [full]
        for rows in sorted({size for size in smaller if size < batch_size}, reverse=True):
            if full.capture_error:
                break
            try:
                forward = _Forward(run, *(each[:rows] for each in inputs), stream=self._stream, pool=full.pool)
            except Exception as error:
                # A user's model may know one batch size only, and inductor raises whatever such a model provokes.
                log.warning("no graph of %d: %s", rows, (str(error) or type(error).__name__).splitlines()[0][:200])
                continue
            if not forward.capture_error:
                found.append(forward)
        return found[::-1]


def _copy(target: torch.Tensor, source: torch.Tensor, stream: int) -> None:
    """All of a small tensor."""
    copy_async(target.data_ptr(), source.data_ptr(), source.nbytes, stream)
