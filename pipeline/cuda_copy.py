"""Copies from, to and within a GPU's memory that keep Python's lock.

torch gives the lock back for each copy. Where an engine shares its process with other threads, it then queues for the
lock ten times a batch, each time for as long as they may keep it. A copy that only queues work takes 3 us: it is
cheaper to keep the lock.
"""

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

# cudaMemcpyKind, by whether the source and the target are on the device.
_KINDS = {(False, True): 1, (True, False): 2, (True, True): 3}


def copy_async(target: Tensor, source: Tensor, size: int, stream: torch.cuda.Stream) -> None:
    """Queue a copy on a stream, which must be the current one, and return.

    Args:
        target, source: contiguous, on the device or page-locked; both must live until the copy has ended.
        size: bytes, from the start of both.

    Raises:
        torch.AcceleratorError: CUDA refused.
    """
    memcpy = _memcpy_async()
    if memcpy is None:
        items = size // source.element_size()
        target.view(-1)[:items].copy_(source.view(-1)[:items], non_blocking=True)
        return
    kind = _KINDS[source.is_cuda, target.is_cuda]
    code = memcpy(target.data_ptr(), source.data_ptr(), size, kind, stream.cuda_stream)
    if code:
        raise torch.AcceleratorError(f"cudaMemcpyAsync of {size} bytes: error {code}")


@cache
def _memcpy_async() -> Any | None:
    """cudaMemcpyAsync of the library that torch has loaded; None where it has another name than usual."""
    try:
        # Unlike CDLL, PyDLL keeps the lock.
        library = ctypes.PyDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}")
    except OSError:
        return None
    memcpy = library.cudaMemcpyAsync
    memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    memcpy.restype = ctypes.c_int
    return memcpy
