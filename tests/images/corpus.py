"""Every kind of file that a caller may send, and what must come of it.

`corpus()` gives all samples; `good()` those that decode, `bad()` those that must be refused.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from pipeline.errors import BadImage


@dataclass(frozen=True)
class Sample:
    """A file and its outcome.

    Attributes:
        name: says what is odd about the file.
        data: the file.
        format: as sniffed; empty for what is refused there.
        size: width and height as stored, for what decodes.
        orientation: EXIF orientation that the header gives.
        notes: what the conversions must name, in part.
        decoder: which must have decoded it; empty for the usual one of its format.
        error: the class that the file is refused with; None for what decodes.
        words: what the refusal must say, in part.
        upright: uint8 [height, width, 3] that the oriented image shows, where it is known exactly or nearly.
        tolerance: the largest difference in grey levels from `upright`; the mean one where the file is lossy.
        lossy: whether encoding has changed the picture.
    """

    name: str
    data: bytes
    format: str = "JPEG"
    size: tuple[int, int] = (160, 120)
    orientation: int = 1
    notes: tuple[str, ...] = ()
    error: type[BadImage] | None = None
    words: tuple[str, ...] = ()
    upright: npt.NDArray[np.uint8] | None = None
    tolerance: int = 0
    lossy: bool = False
    decoder: str = ""

    @property
    def decoded_by(self) -> str:
        return self.decoder or ("libjpeg-turbo" if self.format == "JPEG" else "pillow")

    def __str__(self) -> str:
        return self.name


@cache
def corpus() -> tuple[Sample, ...]:
    from tests.images import bad_files, findings, good_jpegs, good_others, good_tiffs, not_images, oversized_metadata

    modules = (good_jpegs, good_others, good_tiffs, oversized_metadata, not_images, bad_files, findings)
    samples = tuple(sample for module in modules for sample in module.samples())
    assert len({sample.name for sample in samples}) == len(samples)
    return samples


def good() -> list[Sample]:
    return [sample for sample in corpus() if sample.error is None]


def bad() -> list[Sample]:
    return [sample for sample in corpus() if sample.error is not None]


def by_name(name: str) -> Sample:
    return next(sample for sample in corpus() if sample.name == name)
