"""Any Pillow image to RGB of 8 bits: the policy.

alpha, colour keys, transparent palette entries    composited on white
16 bits a sample                                   the high byte
palette                                            expanded
grey, 1-bit                                        three equal channels
CMYK                                               as Pillow converts it, without a profile
float, 32-bit and signed integers, L*a*b*          refused: their range is not known
"""

import numpy as np
import numpy.typing as npt
from PIL import Image

from pipeline.errors import UnsupportedImage

Pixels = npt.NDArray[np.uint8]

_ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
_REFUSED = {
    "F": "floating-point samples",
    "I": "32-bit or signed integer samples",
    "LAB": "L*a*b* colours",
    "HSV": "HSV colours",
}
# TIFF 6.0 tag numbers.
_BITS_PER_SAMPLE, _PHOTOMETRIC = 258, 262


def to_rgb(image: Image.Image, *, deep: bool, reduction: int = 1) -> tuple[Pixels, list[str]]:
    """uint8 [height, width, 3] of a loaded image, writable, and the conversions in words.

    Args:
        image: any mode that Pillow's readers give.
        deep: whether the file held 16 bits a sample, of which Pillow kept 8.
        reduction: how many times fewer rows and columns, rounded up: each pixel is the mean of a block.

    Raises:
        UnsupportedImage: samples whose range is not known.
    """
    whole, conversions = _whole(image, deep)
    if reduction > 1:
        whole = (whole if isinstance(whole, Image.Image) else Image.fromarray(whole)).reduce(reduction)
    return np.array(whole) if isinstance(whole, Image.Image) else whole, conversions


def _whole(image: Image.Image, deep: bool) -> tuple[Image.Image | Pixels, list[str]]:
    if image.mode in _REFUSED:
        raise UnsupportedImage(f"{image.format} with {_REFUSED[image.mode]} is not supported; 8- and 16-bit ones are")
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    conversions = ["16 bits to 8"] if deep else []
    if image.mode in _ALPHA_MODES:
        return _on_white(image), [*conversions, "alpha composited on white"]
    if image.mode == "P":
        return _from_palette(image)
    key = image.info.pop("transparency", None)
    conversions += _words(image.mode, key is not None)
    opaque = image.convert("RGB") if image.mode != "RGB" else image
    if key is None:
        return opaque, conversions
    pixels = np.array(opaque)
    pixels[_matches(pixels, key)] = 255
    return pixels, conversions


def cmyk_to_rgb(samples: Pixels) -> Pixels:
    """uint8 [height, width, 3] of a JPEG's CMYK samples [height, width, 4], inverted as Adobe and Pillow have it."""
    height, width, _ = samples.shape
    image = Image.frombuffer("CMYK", (width, height), samples, "raw", "CMYK;I", 0, 1)
    return np.array(image.convert("RGB"))


def _words(mode: str, keyed: bool) -> list[str]:
    words = {"1": ["1-bit to RGB"], "L": ["grey to RGB"], "RGB": [], "RGBX": []}.get(mode, [f"{mode} to RGB"])
    return [*words, "transparent colour composited on white"] if keyed else words


def _matches(pixels: Pixels, key: int | tuple[int, ...]) -> npt.NDArray[np.bool_]:
    matches: npt.NDArray[np.bool_] = (pixels == np.array(key)).all(axis=-1)
    return matches


def _on_white(image: Image.Image) -> Image.Image:
    rgba = image if image.mode == "RGBA" else image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(rgba, mask=rgba)
    return white


def _from_palette(image: Image.Image) -> tuple[Image.Image, list[str]]:
    conversions = ["palette expanded"]
    alpha = image.info.pop("transparency", None)
    if alpha is not None:
        image.putpalette(_palette_on_white(image, alpha).tobytes(), "RGB")
        conversions.append("transparent colours composited on white")
    return image.convert("RGB"), conversions


def _palette_on_white(image: Image.Image, alpha: int | bytes) -> Pixels:
    """uint8 [1, 256, 3]. The alpha is one entry's index, or one byte for each of the first entries."""
    colours = np.zeros((1, 256, 4), np.uint8)
    known = np.array(image.getpalette("RGB"), np.uint8).reshape(-1, 3)[:256]
    colours[0, : len(known), :3] = known
    colours[..., 3] = 255
    if isinstance(alpha, bytes):
        colours[0, : len(alpha), 3] = np.frombuffer(alpha[:256], np.uint8)
    elif alpha < 256:
        colours[0, alpha, 3] = 0
    return np.array(_on_white(Image.fromarray(colours)))


def _from_16_bits(image: Image.Image) -> tuple[Pixels, list[str]]:
    tags = getattr(image, "tag_v2", {})
    bits = max(tags.get(_BITS_PER_SAMPLE, (16,)))
    samples = np.asarray(image)
    grey = (samples >> (bits - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:
        # Pillow inverts white-is-zero images of up to 8 bits only.
        grey = 255 - grey
    conversions = [f"{bits} bits to 8", "grey to RGB"]
    key = image.info.pop("transparency", None)
    if key is not None:
        grey[samples == key] = 255
        conversions.append("transparent colour composited on white")
    return np.repeat(grey[:, :, None], 3, axis=2), conversions
