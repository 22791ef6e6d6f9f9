"""Photographs of 12 megapixels: what a smaller decode saves, and what it changes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from bench.decode.ways import Served, Way
from pipeline.decoders import decode_into_slot
from pipeline.headers import Limits
from pipeline.model import Model
from pipeline.reference import normalize, reference_levels
from pipeline.request import Request
from pipeline.slots import Slot, SlotPool

PIXELS = 12_000_000
# What a smaller decode may change: grey levels (largest, mean) and probabilities of the reference's.
LARGEST_LEVELS, MEAN_LEVELS, LARGEST_PROBABILITY = 6, 0.5, 0.03
BARE, FULL, SCALED = "simplejpeg, whole image", "warmlane, whole image", "warmlane, --prescale"
_QUALITY, _NOISE, _SEED = 93, 3.5, 3

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Change:
    """What a smaller decode changes, over some photographs, against torchvision v2 on the whole decode.

    Attributes:
        largest, mean: grey levels of the crop, 0 to 255.
        probability: largest difference of one.
        top1: share of photographs whose best class stays, 0 to 1.
    """

    largest: float
    mean: float
    probability: float
    top1: float

    @property
    def is_tolerable(self) -> bool:
        levels = self.largest <= LARGEST_LEVELS and self.mean <= MEAN_LEVELS
        return levels and self.probability <= LARGEST_PROBABILITY and self.top1 == 1.0


def enlarged(photograph: Pixels, pixels: int = PIXELS) -> bytes:
    """A JPEG of the photograph with so many pixels, and the noise that a camera would leave in each."""
    height, width, _ = photograph.shape
    scale = (pixels / (height * width)) ** 0.5
    size = round(width * scale), round(height * scale)
    large = np.asarray(Image.fromarray(photograph).resize(size, Image.Resampling.BICUBIC))
    noise = np.random.default_rng(_SEED).standard_normal((*large.shape[:2], 1), dtype=np.float32) * _NOISE
    file = io.BytesIO()
    Image.fromarray(np.clip(large + noise, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def large_ways(model: Model, canvas: int) -> list[Way]:
    """The whole image, by itself and into a slot, and a smaller decode into a slot."""
    slot = SlotPool(1, canvas).slots[0]
    served = Served(model.preprocess)

    def into_slot(limits: Limits) -> Way:
        name = SCALED if limits.prescale else FULL
        return Way(
            name, lambda file: Request(file, "", slot), lambda request: decode_into_slot(request, limits, served)
        )

    return [Way(BARE, bytes, simplejpeg.decode_jpeg), into_slot(Limits()), into_slot(Limits(prescale=True))]


@torch.inference_mode()
def change(model: Model, files: Sequence[bytes]) -> Change:
    """What a smaller decode changes of these files."""
    whole = torch.stack([reference_levels(simplejpeg.decode_jpeg(file), model.preprocess) for file in files])
    smaller = torch.stack([_scaled_crop(model, file) for file in files])
    apart = (whole.float() - smaller.float()).abs()
    expected, found = (_probabilities(model, levels) for levels in (whole, smaller))
    return Change(
        largest=apart.max().item(),
        mean=apart.mean().item(),
        probability=(expected - found).abs().max().item(),
        top1=(expected.argmax(dim=1) == found.argmax(dim=1)).float().mean().item(),
    )


def _scaled_crop(model: Model, file: bytes) -> torch.Tensor:
    """uint8 [3, *crop]."""
    height, width = model.preprocess.crop
    slot: Slot = SlotPool(1, max(height, width)).slots[0]
    request = Request(file, "", slot)
    decode_into_slot(request, Limits(prescale=True), Served(model.preprocess))
    assert request.decoding is not None
    assert any("of its size" in words for words in request.decoding.conversions), "nothing was decoded smaller"
    return slot.tensor[:, :height, :width]


def _probabilities(model: Model, levels: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model.module(normalize(levels, model.preprocess))
    return logits.softmax(dim=1)
