"""`pipeline.decode` on files that are cut or changed: an error that says so, or the whole picture."""

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.decode import decode
from pipeline.errors import BadImage, CorruptImage, NotAnImage
from pipeline.headers import Limits, read_header
from pipeline.sniff import SUPPORTED
from tests.images.make import encode, photo

# Pillow warns of metadata that damaged TIFF files lack; the module's own filter is reset by pytest's.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


def take(data: bytes) -> npt.NDArray[np.uint8]:
    return decode(data, read_header(data, Limits()), reuse=False).pixels


def small_files() -> dict[str, bytes]:
    image, flat = photo(24, 16), photo(24, 16, "P")
    files = {
        "baseline": encode(image, "JPEG"),
        "progressive": encode(image, "JPEG", progressive=True),
        "grey": encode(photo(24, 16, "L"), "JPEG"),
        "cmyk": encode(photo(24, 16, "CMYK"), "JPEG"),
        "png": encode(image, "PNG"),
        "png palette": encode(flat, "PNG", transparency=3),
        "gif": encode(flat, "GIF"),
        "gif animated": encode(flat, "GIF", save_all=True, append_images=[photo(24, 16, "L")]),
        "webp": encode(image, "WEBP"),
        "webp lossless": encode(image, "WEBP", lossless=True),
        "webp animated": encode(image, "WEBP", save_all=True, append_images=[photo(24, 16, "L")]),
        "bmp": encode(image, "BMP"),
        "bmp palette": encode(flat, "BMP"),
        "tiff": encode(image, "TIFF"),
        "tiff lzw": encode(image, "TIFF", compression="tiff_lzw"),
        "tiff jpeg": encode(image, "TIFF", compression="jpeg"),
        "tiff palette": encode(flat, "TIFF"),
    }
    if "AVIF" in SUPPORTED:
        files["avif"] = encode(image, "AVIF", speed=10)
    return files


@pytest.mark.parametrize("name", small_files())
def test_any_prefix_is_refused_or_whole(name: str) -> None:
    """Cut anywhere, a file gives either an error or all of its pixels: never a picture with a grey part."""
    data = small_files()[name]
    whole = take(data)
    refused = 0
    for length in range(len(data)):
        try:
            pixels = take(data[:length])
        except (CorruptImage, NotAnImage):
            refused += 1
        else:
            assert np.array_equal(pixels, whole), f"{length} of {len(data)} bytes"
    # Of an animation the first frame is enough.
    assert refused > len(data) // 3


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    at = int(rng.integers(len(changed)))
    match rng.integers(5):
        case 0:
            changed[at] = int(rng.integers(256))
        case 1:
            changed[at] ^= 1 << int(rng.integers(8))
        case 2:
            changed[at : at + 4] = bytes([int(rng.choice([0, 0xFF, 0x7F]))]) * 4
        case 3:
            del changed[at : at + int(rng.integers(1, 9))]
        case _:
            changed[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(changed)


@pytest.mark.parametrize("name", small_files())
def test_mutations_raise_nothing_but_bad_image(name: str) -> None:
    rng = np.random.default_rng(11)
    data = small_files()[name]
    small = Limits(max_pixels=1_000_000)
    messages: list[str] = []
    for _ in range(250):
        mutant = data
        for _ in range(int(rng.integers(1, 4))):
            mutant = mutate(mutant, rng)
        try:
            header = read_header(mutant, small)
            assert decode(mutant, header).pixels.shape == (header.height, header.width, 3)
        except BadImage as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all(message and " object at " not in message for message in messages)
