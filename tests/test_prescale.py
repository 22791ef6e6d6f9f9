"""`--prescale`: large images decoded smaller, held against torchvision v2 on the whole image."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from bench.decode import large
from bench.decode.ways import Served
from bench.parity import photographs
from pipeline.canvas import pick_reduction
from pipeline.decode import decode
from pipeline.decoders import decode_into_slot
from pipeline.headers import Limits, read_header
from pipeline.model import Model
from pipeline.options import CUDA_CANVAS
from pipeline.preprocess import Preprocess
from pipeline.reference import reference_levels
from pipeline.request import Request
from pipeline.slots import SlotPool
from pipeline.transforms import resize_levels
from tests.images.make import encode, photo
from tests.test_decode import UPRIGHT

PREPROCESS = Preprocess(resize=64, crop=(56, 56))
LOSSLESS = {"WEBP": {"lossless": True}}
# Grey levels, of a picture with sharp edges and noise: more than photographs change.
LARGEST, MEAN = 12.0, 1.0


def test_photographs_of_12_megapixels_stay_within_the_tolerance(default_model: Model) -> None:
    found = large.change(default_model, [large.enlarged(photograph) for photograph in photographs()])
    assert found.is_tolerable, found
    assert found.largest > 0, "nothing was decoded smaller"


@pytest.mark.parametrize("canvas", [56, CUDA_CANVAS])
@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("size", [(640, 480), (643, 485), (485, 1283), (1024, 512)])
def test_the_crop_lies_where_it_lay(size: tuple[int, int], subsampling: int, canvas: int) -> None:
    data = encode(photo(*size), "JPEG", subsampling=subsampling, quality=95)
    assert_close(crop(data, canvas), data)


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("size", [(640, 480), (643, 485)])
def test_turned_images(orientation: int, size: tuple[int, int]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(*size), "JPEG", quality=95, exif=exif)
    assert_close(crop(data, 56), data, orientation)


def test_a_shifted_crop_would_be_seen() -> None:
    """The control of the tests above: half a source pixel of the smaller image off."""
    data = encode(photo(640, 480), "JPEG", quality=95)
    shifted = np.roll(decode(data, read_header(data, Limits()), reuse=False).pixels, 2, axis=1)
    apart = np.abs(crop(data, 56) - reference_levels(shifted, PREPROCESS).numpy().astype(float))
    assert apart.mean() > MEAN


@pytest.mark.parametrize(
    ("height", "width", "orientation", "expected"),
    [
        (3000, 4000, 1, 4),
        (1023, 1024, 1, 1),
        (1024, 1024, 1, 2),
        (4096, 4096, 1, 8),
        (255, 9000, 1, 1),
        (3001, 4000, 6, 1),
    ],
)
def test_how_much_smaller(height: int, width: int, orientation: int, expected: int) -> None:
    assert pick_reduction(height, width, orientation, Preprocess()) == expected


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_other_formats(kind: str, mode: str) -> None:
    data = encode(photo(643, 485, mode if (kind, mode) != ("WEBP", "P") else "RGB"), kind, **LOSSLESS.get(kind, {}))
    assert_close(crop(data, 56), data)


def test_sizes_are_rounded_up() -> None:
    for data in (encode(photo(643, 485).convert("L"), "JPEG"), encode(photo(643, 485), "PNG")):
        decoded = decode(data, read_header(data, Limits()), reduction=4)
        assert decoded.pixels.shape == (122, 161, 3)
        assert decoded.conversions[-1] == "decoded at 1/4 of its size"


def test_without_the_setting_nothing_is_decoded_smaller() -> None:
    data = encode(photo(640, 480), "JPEG")
    request = Request(data, "", SlotPool(1, 56).slots[0])
    decode_into_slot(request, Limits(), Served(PREPROCESS))
    assert request.decoding is not None
    assert request.decoding.conversions == []


def crop(data: bytes, canvas: int) -> npt.NDArray[np.float64]:
    """float64 [3, *crop] of a smaller decode, through a slot."""
    slot = SlotPool(1, canvas).slots[0]
    request = Request(data, "", slot)
    decode_into_slot(request, Limits(prescale=True), Served(PREPROCESS))
    assert request.geometry is not None
    rows = torch.tensor([request.geometry.row()])
    return resize_levels(slot.tensor[None], rows, PREPROCESS, torch.float32)[0].numpy().astype(float)


def assert_close(found: npt.NDArray[np.float64], data: bytes, orientation: int = 1) -> None:
    with_pixels = decode(data, read_header(data, Limits()), reuse=False).pixels
    whole = np.ascontiguousarray(UPRIGHT[orientation](with_pixels))
    apart = np.abs(found - reference_levels(whole, PREPROCESS).numpy().astype(float))
    assert apart.max() <= LARGEST, f"{apart.max()} grey levels off, {apart.mean():.2f} in the mean"
    assert apart.mean() <= MEAN, f"{apart.mean():.2f} grey levels off in the mean"
