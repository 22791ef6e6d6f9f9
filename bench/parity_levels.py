"""How far our own resize, and torchvision v2's on a GPU, are from torchvision v2 on the CPU, in grey levels."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

from pipeline.canvas import place
from pipeline.lanes import DTYPES
from pipeline.options import CUDA_CANVAS
from pipeline.preprocess import Interpolation, Preprocess
from pipeline.reference import reference_levels
from pipeline.transforms import resize_levels

Pixels = NDArray[np.uint8]

# Images computed at a time.
BATCH = {"cuda": 64, "cpu": 4}
# Products in fp16 are slow on a CPU, and nothing serves them there.
_RESIZE_DTYPES = {"cuda": ("fp32", "fp16"), "cpu": ("fp32",)}
OURS, THEIRS = "ours against v2 on the CPU", "v2 on the device against v2 on the CPU"
# Grey levels that the resize may be off.
LIMITS: dict[Interpolation, int] = {"bilinear": 1, "bicubic": 2}


@dataclass(frozen=True, slots=True)
class Levels:
    """One way of resizing against torchvision v2 on the CPU, in grey levels of 0 to 255.

    Attributes:
        name: `OURS` or `THEIRS`.
        limit: None where the comparison is for information.
    """

    name: str
    interpolation: str
    dtype: str
    largest: float
    mean: float
    limit: int | None

    @property
    def is_within_limit(self) -> bool:
        """True also where there is no limit."""
        return self.limit is None or self.largest <= self.limit


def all_levels(declared: Preprocess, images: Sequence[Pixels], device: torch.device) -> Iterator[Levels]:
    """Each filter in each dtype that is served on the device; torchvision's own difference only where there is one."""
    for interpolation in LIMITS:
        preprocess = replace(declared, interpolation=interpolation)
        for dtype in _RESIZE_DTYPES[device.type]:
            yield levels_apart(images, preprocess, dtype, device)
        if device.type != "cpu":
            yield torchvision_apart(images, preprocess, device)


def levels_apart(images: Sequence[Pixels], preprocess: Preprocess, dtype: str, device: torch.device) -> Levels:
    """Our resize on the device against torchvision's on the CPU, which agrees with Pillow's."""

    def resize(batch: Sequence[Pixels]) -> Tensor:
        return resize_levels(*canvases(batch, preprocess, device), preprocess, DTYPES[dtype])

    largest, mean = _apart(resize, images, preprocess, device)
    return Levels(OURS, preprocess.interpolation, dtype, largest, mean, LIMITS[preprocess.interpolation])


def torchvision_apart(images: Sequence[Pixels], preprocess: Preprocess, device: torch.device) -> Levels:
    """Torchvision's own resize on the device against the one on the CPU."""

    def resize(batch: Sequence[Pixels]) -> Tensor:
        return torch.stack([reference_levels(pixels, preprocess, str(device)) for pixels in batch])

    largest, mean = _apart(resize, images, preprocess, device)
    return Levels(THEIRS, preprocess.interpolation, "uint8", largest, mean, None)


def _apart(
    resize: Callable[[Sequence[Pixels]], Tensor],
    images: Sequence[Pixels],
    preprocess: Preprocess,
    device: torch.device,
) -> tuple[float, float]:
    """Largest and mean difference of grey levels from torchvision v2 on the CPU."""
    apart = []
    with tf32(False):
        for start in range(0, len(images), BATCH[device.type]):
            batch = images[start : start + BATCH[device.type]]
            reference = torch.stack([reference_levels(pixels, preprocess) for pixels in batch])
            apart.append((resize(batch).cpu().float() - reference.float()).abs().flatten())
    all_apart = torch.cat(apart)
    return all_apart.max().item(), all_apart.mean().item()


def levels_table(rows: Sequence[Levels]) -> Table:
    """One line a comparison of resizes."""
    table = Table("resize", "filter", "computed in", "largest, levels", "mean", "limit")
    for row in rows:
        limit = "none" if row.limit is None else str(row.limit)
        table.add_row(row.name, row.interpolation, row.dtype, f"{row.largest:.0f}", f"{row.mean:.4f}", limit)
    return table


def about_levels(device: torch.device) -> str:
    """What the reader of the table should know."""
    if device.type == "cpu":
        return "v2 runs on the CPU here, so there is no other device to compare it with."
    return (
        f"'{THEIRS}' is for information: v2's bicubic on CUDA does not clip to 0..255 between its two passes, as it "
        "and Pillow do on the CPU and as ours does everywhere, so it differs at sharp edges."
    )


def canvases(batch: Sequence[Pixels], preprocess: Preprocess, device: torch.device) -> tuple[Tensor, Tensor]:
    """uint8 [B, 3, S, S] and float32 [B, 6], as lanes have them."""
    slots = np.zeros((len(batch), CUDA_CANVAS, CUDA_CANVAS, 3), np.uint8)
    rows = [place(pixels, 1, preprocess, slot).row() for pixels, slot in zip(batch, slots, strict=True)]
    return torch.from_numpy(slots).permute(0, 3, 1, 2).to(device), torch.tensor(rows, device=device)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Whether float32 products may be rounded; as it was afterwards."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
