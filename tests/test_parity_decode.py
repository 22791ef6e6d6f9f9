"""What `make parity` says of decoding on a GPU; `fake_jpeg` is the GPU."""

import io

import numpy as np
import pytest
import torch
from rich.console import Console

from bench import parity, parity_decode
from pipeline.gpu_rows import GpuRows
from pipeline.nvjpeg import NoJpegEngine
from pipeline.options import CUDA_CANVAS
from tests.fake_jpeg import REFUSED, FakeJpeg
from tests.images.make import after_soi

CPU = torch.device("cpu")


def rows_of_one() -> GpuRows:
    return GpuRows(1, CUDA_CANVAS, CPU)


def files() -> list[bytes]:
    return parity_decode.encoded(parity.views(parity.photographs(), 6))


def test_the_same_decoder_on_both_sides_is_not_apart() -> None:
    row = parity_decode.decodes("same", FakeJpeg(CUDA_CANVAS), rows_of_one(), files(), 2)
    assert (row.largest, row.mean, row.refused) == (0, 0, 0)
    assert row.is_within_limit
    assert all(np.array_equal(gpu, cpu) for gpu, cpu in zip(row.gpu, row.cpu, strict=True))


def test_another_decoder_is_over_the_limit() -> None:
    row = parity_decode.decodes("other", FakeJpeg(CUDA_CANVAS, shift=3), rows_of_one(), files(), 2)
    assert row.mean >= 3
    assert not row.is_within_limit


def test_what_is_refused_is_counted_and_not_compared() -> None:
    some = files()
    some[1] = after_soi(some[1], REFUSED)
    row = parity_decode.decodes("same", FakeJpeg(CUDA_CANVAS), rows_of_one(), some, 2)
    assert (row.refused, row.files, len(row.gpu)) == (1, len(some), len(some) - 1)


def test_images_that_no_engine_would_get_are_left_out() -> None:
    sizes = [(15, 40), (20, 20), (600, 100), (300, 200)]
    assert len(parity_decode.encoded([np.zeros((*size, 3), np.uint8) for size in sizes])) == 2


def test_without_a_gpu_there_is_nothing_to_compare() -> None:
    with pytest.raises(NoJpegEngine, match="no GPU"):
        list(parity_decode.all_decodes(files(), CPU))


def test_the_table() -> None:
    row = parity_decode.decodes(parity_decode.SERVED, FakeJpeg(CUDA_CANVAS), rows_of_one(), files(), 2)
    text = io.StringIO()
    Console(file=text, width=140).print(parity_decode.decodes_table([row], lambda row: (1.0, 0.001)))
    assert "0 (limit 2)" in text.getvalue()
    assert "0 of 6" in text.getvalue()
    assert "100.00%" in text.getvalue()
