"""Pillow behind one door: what it may be fed, and what its many exceptions mean."""

import io
import re
import struct
import warnings
import zlib

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from pipeline.errors import CorruptImage, UnsupportedImage
from pipeline.ifd import ORIENTATION, read_directory, read_layout
from pipeline.rasters import BAD_DATA, SAMPLE_FORMAT, png_chunks
from pipeline.to_rgb import to_rgb

# Pillow warns of broken metadata, none of which is used. Set once: warnings.catch_warnings is not for threads.
warnings.filterwarnings("ignore", module=r"PIL\.")

# Pillow unpacks these in Python, up to a microsecond a byte with the interpreter's lock held.
_MAX_RUN_LENGTH_BYTES = _MAX_RUN_LENGTH_PIXELS = 1 << 20

_UNSUPPORTED = re.compile(
    r"unsupported|not supported|not yet supported|cannot handle|unknown pixel mode|decoder .* not avail", re.I
)
_TRUNCATED = re.compile(r"truncated|not enough image data|unexpected end|incomplete|too small", re.I)
_PRIVATE = re.compile(r"0x[0-9a-f]{6,}|[/\\<>]")

# TIFF 6.0, section 19.
_FLOATING_POINT = 3

_PNG_DEPTHS = (1, 2, 4, 8, 16)
_CRITICAL_PNG = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")


def decode_with_pillow(
    data: bytes, kind: str, size: tuple[int, int], reduction: int = 1
) -> tuple[npt.NDArray[np.uint8], list[str]]:
    """uint8 [height, width, 3] RGB of the first frame, and what was done to get there.

    Args:
        data: the file.
        kind: Pillow's name of the format.
        size: width and height that the file's header gave.
        reduction: see `to_rgb.to_rgb`.

    Raises:
        CorruptImage: truncated or damaged.
        UnsupportedImage: Pillow cannot read this kind, or it has no meaning as 8-bit RGB.
    """
    image = _load(_prepare(data, kind, size), kind, size)
    with image:
        pixels, conversions = to_rgb(image, deep=_is_deep(image, data), reduction=reduction)
    return pixels, conversions


def _load(data: bytes, kind: str, size: tuple[int, int]) -> ImageFile.ImageFile:
    try:
        image = _open(data, kind)
        if image.size != size:
            raise CorruptImage(f"damaged {kind}: its header gives two sizes")
        image.load()
    except CorruptImage:
        raise
    except BAD_DATA as error:
        raise _fault(error, kind) from None
    return image


def _open(data: bytes, kind: str) -> ImageFile.ImageFile:
    """As Image.open(formats=[kind]), which hides why a plugin refused a file."""
    Image.preinit()
    if kind not in Image.OPEN:
        Image.init()
    return Image.OPEN[kind][0](io.BytesIO(data), "")


def _fault(error: Exception, kind: str) -> CorruptImage | UnsupportedImage:
    reason = str(error).split("\n")[0][:100]
    if _PRIVATE.search(reason):
        reason = type(error).__name__
    if _UNSUPPORTED.search(reason):
        return UnsupportedImage(f"this kind of {kind} is not supported ({reason})")
    word = "truncated" if _TRUNCATED.search(reason) else "damaged"
    return CorruptImage(f"{word} {kind}: {reason}")


def _prepare(data: bytes, kind: str, size: tuple[int, int]) -> bytes:
    if kind == "PNG":
        return _critical_png(data)
    if kind == "TIFF":
        return _as_stored_tiff(data)
    if kind == "BMP":
        _refuse_long_runs(data, size)
    return data


def _critical_png(data: bytes) -> bytes:
    """The PNG without what cannot change a pixel: broken text, profiles and animations do no harm."""
    depth, colour_type = data[24], data[25]
    if depth not in _PNG_DEPTHS:
        raise CorruptImage(f"damaged PNG: {depth} bits a sample")
    parts, kinds = [data[:8]], set()
    for kind, start, length in png_chunks(data):
        if kind not in _CRITICAL_PNG:
            continue
        kinds.add(kind)
        _check_crc(data, kind, start, length)
        if kind == b"tRNS" and colour_type in (0, 2):
            parts.append(_eight_bit_key(data[start : start + length], depth, colour_type))
        else:
            parts.append(data[start - 8 : start + length + 4])
    if b"IDAT" not in kinds:
        raise CorruptImage("truncated PNG: it ends before its image data")
    return b"".join(parts)


def _check_crc(data: bytes, kind: bytes, start: int, length: int) -> None:
    """PNG, third edition, 5.5. Pillow does not check it on image data."""
    end = start + length
    if zlib.crc32(memoryview(data)[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
        raise CorruptImage(f"damaged PNG: wrong checksum in its {kind.decode()} chunk")


def _eight_bit_key(key: bytes, depth: int, colour_type: int) -> bytes:
    """A tRNS chunk in units of the 8-bit samples that Pillow compares it with (16-bit grey stays)."""
    values = [int.from_bytes(key[at : at + 2], "big") for at in range(0, len(key) - 1, 2)]
    if colour_type == 2 and depth == 16:
        values = [value >> 8 for value in values]
    elif depth < 8:
        values = [value * 255 // ((1 << depth) - 1) & 255 for value in values]
    body = b"tRNS" + b"".join(value.to_bytes(2, "big") for value in values)
    return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))


def _as_stored_tiff(data: bytes) -> bytes:
    """The TIFF with orientation 1, as Pillow would turn it upright of its own accord."""
    layout = read_layout(data)
    page = read_directory(data, layout, layout.first_at)
    if page.values.get(SAMPLE_FORMAT) == _FLOATING_POINT:
        raise UnsupportedImage("TIFF with floating-point samples is not supported; 8- and 16-bit integers are")
    if page.values.get(ORIENTATION, 1) == 1:
        return data
    at = page.value_at[ORIENTATION]
    return data[:at] + struct.pack(layout.order + "H", 1) + data[at + 2 :]


def _refuse_long_runs(data: bytes, size: tuple[int, int]) -> None:
    run_length = data[14] != 12 and data[30:34] in (b"\1\0\0\0", b"\2\0\0\0")
    if run_length and (len(data) > _MAX_RUN_LENGTH_BYTES or size[0] * size[1] > _MAX_RUN_LENGTH_PIXELS):
        raise UnsupportedImage("run-length encoded BMP of over a megapixel is not supported; send a plain BMP or a PNG")


def _is_deep(image: ImageFile.ImageFile, data: bytes) -> bool:
    """Whether the file holds 16 bits a sample (in colour images Pillow has dropped the low ones)."""
    if image.format == "PNG":
        return data[24] == 16
    return image.format == "TIFF" and max(image.tag_v2.get(258, (8,))) == 16  # type: ignore[attr-defined]
