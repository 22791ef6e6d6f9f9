"""Copies where CUDA's own library is not to be had: torch makes them, and means the same by a size.

The missing library is the only fake. tests/gpu has the copies of a real one.
"""

from typing import Any

import pytest
import torch

from pipeline import cuda_copy

NO_STREAM: Any = None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int32])
def test_a_size_in_bytes_is_copied_and_no_more(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(cuda_copy, "_memcpy_async", lambda: None)
    source, target = torch.arange(1, 13, dtype=dtype).view(3, 4), torch.zeros(3, 4, dtype=dtype)
    cuda_copy.copy_async(target, source, 5 * source.element_size(), NO_STREAM)
    assert target.flatten().tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0]
