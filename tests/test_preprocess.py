"""The settings of a transform against torchvision's own arithmetic."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2.functional import _geometry

from pipeline.preprocess import Preprocess
from pipeline.reference import normalize, reference_levels

SIDES = (*range(1, 40), 223, 224, 225, 255, 256, 257, 333, 375, 500, 511, 513, 1023, 1080, 1920, 3000, 4000, 9999)


@pytest.mark.parametrize("resize", [1, 7, 224, 232, 256, 342])
def test_resized_is_torchvisions(resize: int) -> None:
    preprocess = Preprocess(resize=resize, crop=(1, 1))
    for height in SIDES:
        for width in SIDES:
            theirs = _geometry._compute_resized_output_size((height, width), [resize])
            assert list(preprocess.resized(height, width)) == theirs, f"{height}x{width}"


def test_resized_is_torchvisions_for_any_size() -> None:
    rng = random.Random(3)
    for _ in range(20_000):
        size, resize = (rng.randint(1, 10_000), rng.randint(1, 10_000)), rng.randint(1, 1024)
        theirs = _geometry._compute_resized_output_size(size, [resize])
        assert list(Preprocess(resize=resize, crop=(1, 1)).resized(*size)) == theirs, f"{size} to {resize}"


def test_a_squash_resizes_to_what_it_says() -> None:
    preprocess = Preprocess(resize=(192, 256), crop=(192, 256))
    assert preprocess.resized(4000, 3) == (192, 256)
    assert list(preprocess.resized(4000, 3)) == _geometry._compute_resized_output_size((4000, 3), [192, 256])


@pytest.mark.parametrize("crop", [(1, 1), (224, 224), (96, 160), (161, 97)])
def test_crop_origin_is_torchvisions(crop: tuple[int, int]) -> None:
    preprocess = Preprocess(resize=max(crop), crop=crop)
    for height in range(crop[0], crop[0] + 60):
        for width in (*range(crop[1], crop[1] + 60), 1_024_000):
            theirs = _geometry._center_crop_compute_crop_anchor(*crop, height, width)
            assert preprocess.crop_origin(height, width) == theirs, f"{crop} from {height}x{width}"


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (333, 500), (500, 333), (17, 600)])
def test_the_crop_lies_in_the_resized_image(size: tuple[int, int]) -> None:
    for crop in (224, 255, 256):
        preprocess = Preprocess(resize=256, crop=(crop, crop))
        height, width = preprocess.resized(*size)
        top, left = preprocess.crop_origin(height, width)
        assert top >= 0
        assert left >= 0
        assert top + crop <= height
        assert left + crop <= width


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resize": 0}, "at least 1 pixel"),
        ({"resize": -256}, "at least 1 pixel"),
        ({"resize": (0, 224)}, "at least 1 pixel"),
        ({"crop": (0, 224)}, "at least 1 pixel"),
        ({"crop": (224, -1)}, "at least 1 pixel"),
        ({"resize": 200}, "does not fit"),
        ({"crop": (224, 257)}, "does not fit"),
        ({"crop": (257, 224)}, "does not fit"),
        ({"resize": (224, 223)}, "does not fit"),
        ({"resize": (223, 500)}, "does not fit"),
        ({"std": (0.2, 0.0, 0.2)}, "std"),
        ({"std": (0.2, 0.2, -0.2)}, "std"),
        ({"std": (float("nan"), 0.2, 0.2)}, "finite"),
        ({"mean": (0.5, float("inf"), 0.5)}, "finite"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Preprocess(**settings)


def test_a_crop_as_large_as_the_resize_fits() -> None:
    assert Preprocess(resize=224).crop_origin(224, 224) == (0, 0)
    assert Preprocess(resize=(96, 160), crop=(96, 160)).crop_origin(96, 160) == (0, 0)


def test_the_reference_leaves_an_image_that_needs_nothing_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    levels = reference_levels(pixels, Preprocess(resize=224))
    assert levels.dtype == torch.uint8
    assert torch.equal(levels, torch.tensor(pixels).permute(2, 0, 1))


def test_normalize_is_scale_and_shift_per_channel() -> None:
    preprocess = Preprocess(mean=(0.0, 0.5, 1.0), std=(1.0, 0.5, 0.25))
    levels = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 3, 1, 3)
    expected = torch.tensor([[0.0, 0.2, 1.0], [-1.0, -0.6, 1.0], [-4.0, -3.2, 0.0]])[:, None]
    torch.testing.assert_close(normalize(levels, preprocess), expected.expand(2, 3, 1, 3))
