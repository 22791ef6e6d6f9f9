"""torchvision v2's own way from pixels to the model's input: what ours is held against."""

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import InterpolationMode, v2

from pipeline.preprocess import Preprocess


def reference_levels(pixels: NDArray[np.uint8], preprocess: Preprocess, device: str = "cpu") -> torch.Tensor:
    """What torchvision v2 makes of one upright image, before scaling: uint8 [3, *crop].

    Args:
        pixels: uint8 [H, W, 3], RGB.
    """
    mode = InterpolationMode.BILINEAR if preprocess.interpolation == "bilinear" else InterpolationMode.BICUBIC
    size = [preprocess.resize] if isinstance(preprocess.resize, int) else list(preprocess.resize)
    chain = v2.Compose([v2.Resize(size, interpolation=mode, antialias=True), v2.CenterCrop(list(preprocess.crop))])
    # uint8 [3, H, W]; a copy, since the decoder's array may be read-only.
    image = torch.tensor(pixels).permute(2, 0, 1).to(device)
    levels: torch.Tensor = chain(image)
    return levels


def normalize(levels: torch.Tensor, preprocess: Preprocess) -> torch.Tensor:
    """Grey levels 0..255, [..., 3, H, W], to what the model's first layer takes: float32 of the same shape."""
    mean = torch.tensor(preprocess.mean, device=levels.device).view(3, 1, 1)
    std = torch.tensor(preprocess.std, device=levels.device).view(3, 1, 1)
    return (levels.float() / 255.0 - mean) / std
