"""What a model's images go through before its first layer, in numbers."""

import math
from dataclasses import dataclass
from typing import Literal

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, slots=True)
class Preprocess:
    """torchvision v2's Resize(antialias=True) -> CenterCrop -> scale to 0..1 -> Normalize, in numbers.

    Attributes:
        resize: pixels of the shorter side, or (height, width) to squash to.
        crop: (height, width) in pixels, cut from the centre.
        interpolation: the resize filter.
        mean, std: per channel, RGB, of values in 0..1.
    """

    resize: int | tuple[int, int] = 256
    crop: tuple[int, int] = (224, 224)
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        smallest = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if min(*smallest, *self.crop) < 1:
            raise ValueError(f"resize {self.resize} and crop {self.crop} must be at least 1 pixel")
        if self.crop[0] > smallest[0] or self.crop[1] > smallest[1]:
            raise ValueError(f"crop {self.crop} does not fit into resize {self.resize}: padding is not supported")
        if not all(math.isfinite(number) for number in (*self.mean, *self.std)):
            raise ValueError(f"mean {self.mean} and std {self.std} must be finite")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std} must be positive")

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) after the resize of an image of `height` x `width` pixels, as torchvision computes it.

        Source: torchvision.transforms.functional._compute_resized_output_size: the longer side is truncated.
        """
        if not isinstance(self.resize, int):
            return self.resize
        if height <= width:
            return self.resize, int(self.resize * width / height)
        return int(self.resize * height / width), self.resize

    def crop_origin(self, height: int, width: int) -> tuple[int, int]:
        """(top, left) of the centre crop in a resized image of `height` x `width` pixels.

        Source: torchvision.transforms.v2.functional.center_crop: Python's round, which takes halves to the even number.
        """
        return round((height - self.crop[0]) / 2.0), round((width - self.crop[1]) / 2.0)
