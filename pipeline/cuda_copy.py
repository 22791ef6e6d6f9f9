"""Copies from, to and within a GPU's memory that keep Python's lock.

torch gives the lock back for each copy. Where an engine shares its process with other threads, it then queues for the
lock ten times a batch, each time for as long as they may keep it. A copy that only queues work takes 3 us: it is
cheaper to keep the lock. The driver's own call is used since its library has one name everywhere.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch


def copy_async(target: int, source: int, size: int, stream: int) -> None:
    """Queue a copy on a stream, and return.

    Args:
        target, source: addresses, on the device or in page-locked memory; both must live until the copy has ended.
        size: bytes.
        stream: `torch.cuda.Stream.cuda_stream`.

    Raises:
        torch.AcceleratorError: CUDA refused.
    """
    code = _memcpy_async()(target, source, size, stream)
    if code:
        raise torch.AcceleratorError(f"cuMemcpyAsync of {size} bytes: error {code}")


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
def _memcpy_async() -> Any:
    # Unlike CDLL, PyDLL keeps the lock.
    memcpy = ctypes.PyDLL("libcuda.so.1").cuMemcpyAsync
    memcpy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    memcpy.restype = ctypes.c_int
    return memcpy
