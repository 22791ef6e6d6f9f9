"""How far a GPU's JPEG engines are from the CPU's decoder: in grey levels, and in what a model makes of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from rich.table import Table

from pipeline.gpu_decode import JpegDecoder
from pipeline.gpu_open import MOST_DIFFERENCE
from pipeline.gpu_rows import GpuRow, GpuRows
from pipeline.nvjpeg import Job, NoJpegEngine, NvJpeg
from pipeline.options import CUDA_CANVAS

Pixels = NDArray[np.uint8]

SERVED, PLAIN = "as served", "without interpolated chroma"
_SAMPLINGS = ("420", "422", "444")
_QUALITY = 92
# Of smaller ones nvJPEG interpolates otherwise; they are for the CPU.
_LEAST_SIDE = 16


@dataclass(frozen=True, slots=True)
class Decodes:
    """One way of decoding on the GPU, against the CPU, over all files.

    Attributes:
        largest, mean: difference in grey levels of 0 to 255.
        refused: files that the engines did not take.
        limit: None where the comparison is for information.
        gpu, cpu: uint8 [H, W, 3] each, of the files that the engines took.
    """

    name: str
    largest: float
    mean: float
    files: int
    refused: int
    limit: int | None
    gpu: Sequence[Pixels]
    cpu: Sequence[Pixels]

    @property
    def is_within_limit(self) -> bool:
        """True also where there is no limit."""
        return self.limit is None or self.largest <= self.limit


def encoded(images: Sequence[Pixels]) -> list[bytes]:
    """JPEG files of those that fit a canvas, by turns with each chroma sampling that the engines take."""
    fitting = [image for image in images if min(image.shape[:2]) >= _LEAST_SIDE and max(image.shape[:2]) <= CUDA_CANVAS]
    return [
        simplejpeg.encode_jpeg(
            np.ascontiguousarray(image), _QUALITY, "RGB", colorsubsampling=_SAMPLINGS[number % len(_SAMPLINGS)]
        )
        for number, image in enumerate(fitting)
    ]


def all_decodes(files: Sequence[bytes], device: torch.device) -> Iterator[Decodes]:
    """As served, and without interpolated chroma.

    Raises:
        NoJpegEngine: this device has none, or there is no nvJPEG.
    """
    if device.type != "cuda":
        raise NoJpegEngine("there is no GPU here")
    for name, interpolates, limit in ((SERVED, True, MOST_DIFFERENCE), (PLAIN, False, None)):
        decoder = NvJpeg(device, 1, 3 * CUDA_CANVAS, interpolates_chroma=interpolates)
        yield decodes(name, decoder, GpuRows(1, CUDA_CANVAS, device), files, limit)


def decodes(name: str, decoder: JpegDecoder, rows: GpuRows, files: Sequence[bytes], limit: int | None) -> Decodes:
    """Decode all files on both sides."""
    (row,) = rows.take(1)
    cpu = [simplejpeg.decode_jpeg(file, "RGB") for file in files]
    found = [_decode(decoder, row, file, each.shape) for file, each in zip(files, cpu, strict=True)]
    pairs = [(gpu, other) for gpu, other in zip(found, cpu, strict=True) if gpu is not None]
    row.release()
    apart = np.concatenate([np.abs(gpu.astype(int) - other).ravel() for gpu, other in pairs] or [np.zeros(1)])
    return Decodes(
        name,
        largest=float(apart.max()),
        mean=float(apart.mean()),
        files=len(files),
        refused=len(files) - len(pairs),
        limit=limit,
        gpu=[gpu for gpu, _ in pairs],
        cpu=[other for _, other in pairs],
    )


def _decode(decoder: JpegDecoder, row: GpuRow, file: bytes, shape: tuple[int, ...]) -> Pixels | None:
    data, (height, width) = np.frombuffer(file, np.uint8), shape[:2]
    if decoder.decode([Job(data.ctypes.data, data.size, row.address, (0, 0, width, height))]) != [True]:
        return None
    pixels: Pixels = row.flat.view(CUDA_CANVAS, CUDA_CANVAS, 3)[:height, :width].cpu().numpy().copy()
    return pixels


def decodes_table(rows: Sequence[Decodes], agrees: Callable[[Decodes], tuple[float, float]]) -> Table:
    """One line a way.

    Args:
        agrees: share of the files with the same best class, and the largest difference of a probability.
    """
    table = Table("JPEGs on the GPU", "largest, levels", "mean", "top-1 agrees", "largest of a probability", "refused")
    for row in rows:
        top1, largest = agrees(row)
        levels = f"{row.largest:.0f}" + (f" (limit {row.limit})" if row.limit is not None else "")
        refused = f"{row.refused} of {row.files}"
        table.add_row(row.name, levels, f"{row.mean:.5f}", f"{100 * top1:.2f}%", f"{largest:.5f}", refused)
    return table
