"""What a batch asks of a GPU, by calls that keep Python's lock: copies, events, and the launch of a graph.

torch gives the lock back for each. Where an engine shares its process with other threads, it then queues for the
lock a dozen times a batch, each time for as long as they may keep it. A call that only queues work, or asks whether it
is done, is short (a copy takes 3 us): it is cheaper to keep the lock (bench/LOG.md, 2026-12-01). The driver's own calls
are used since its library has one name everywhere; only the launch is the runtime's, which torch's profiler records.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch

# cuda.h: CUDA_ERROR_NOT_READY
_NOT_READY = 600


def copy_async(target: int, source: int, size: int, stream: int) -> None:
    """Queue a copy on a stream, and return.

    Args:
        target, source: addresses, on the device or in page-locked memory; both must live until the copy has ended.
        size: bytes.
        stream: `torch.cuda.Stream.cuda_stream`.

    Raises:
        torch.AcceleratorError: CUDA refused.
    """
    code = _driver().cuMemcpyAsync(target, source, size, stream)
    if code:
        raise torch.AcceleratorError(f"cuMemcpyAsync of {size} bytes: error {code}")


class TimingEvent:
    """A moment on a stream.

    Args:
        stream: that it is recorded on for the first time, so that `is_over` is true soon.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record(stream)  # which makes it
        self._handle: int = self._event.cuda_event

    def record(self, stream: int) -> None:
        """Queue it on a stream; see `copy_async`.

        Raises:
            torch.AcceleratorError: CUDA refused, for whatever has failed on the device before, too.
        """
        code = _driver().cuEventRecord(self._handle, stream)
        if code:
            raise torch.AcceleratorError(f"cuEventRecord: error {code}")

    def is_over(self) -> bool:
        """Whether the device has come to it. Never waits.

        Raises:
            torch.AcceleratorError: something has failed on the device.
        """
        code = _driver().cuEventQuery(self._handle)
        if code == _NOT_READY:
            return False
        if code:
            raise torch.AcceleratorError(f"cuEventQuery: error {code}")
        return True

    def ns_until(self, later: "TimingEvent") -> int:
        """Nanoseconds from this moment to a later one; both are over."""
        return int(self._event.elapsed_time(later._event) * 1e6)


def graph_launcher(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> Callable[[], None]:
    """What launches a captured graph on a stream.

    torch's own `replay` where this torch does not tell the graph's handle, or the graph draws random numbers, which
    only `replay` moves on.
    """
    handle = getattr(graph, "raw_cuda_graph_exec", None)
    launch = _graph_launch()
    if handle is None or launch is None or _draws_random_numbers(graph, stream):
        return partial(_replay, graph, stream)
    return partial(_launch, launch, handle(), stream.cuda_stream)


def _replay(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    # It stays the current one: to look up, change and restore streams and devices took a fifth of a batch's host time.
    torch.cuda.set_stream(stream)
    graph.replay()


def _launch(launch: Any, handle: int, stream: int) -> None:
    code = launch(handle, stream)
    if code:
        raise torch.AcceleratorError(f"cudaGraphLaunch: error {code}")


def _draws_random_numbers(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> bool:
    """Whether a replay moves the device's generator."""
    before = torch.cuda.get_rng_state(stream.device)
    with torch.cuda.stream(stream):
        graph.replay()
    stream.synchronize()
    return not torch.equal(before, torch.cuda.get_rng_state(stream.device))


def merged(targets: Sequence[int], sources: Sequence[int], size: int) -> Iterator[tuple[int, int, int]]:
    """Copies of `size` bytes each, as (target, source, bytes): those whose ends meet on both sides become one."""
    first = 0
    for index in range(1, len(sources) + 1):
        meets = (
            index < len(sources) and sources[index] - sources[index - 1] == targets[index] - targets[index - 1] == size
        )
        if not meets:
            yield targets[first], sources[first], (index - first) * size
            first = index


@cache
def _driver() -> Any:
    # Unlike CDLL, PyDLL keeps the lock.
    driver = ctypes.PyDLL("libcuda.so.1")
    driver.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    driver.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    driver.cuEventQuery.argtypes = [ctypes.c_void_p]
    return driver


@cache
def _graph_launch() -> Any:
    """The runtime's call, of the library that torch has loaded; None where it goes by another name."""
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        launch = ctypes.PyDLL(f"libcudart.so.{major}", mode=os.RTLD_NOLOAD).cudaGraphLaunch
    except OSError:
        return None
    launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return launch
