"""What the headers of PNG, WebP, GIF, BMP, TIFF and AVIF files say, read without decoding or allocating an image."""

import io
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

from pipeline.errors import CorruptImage, UnsupportedImage
from pipeline.ifd import ORIENTATION, count_directories, read_directory, read_layout, read_orientation

# `pipeline.headers.Limits` rules. Pillow's own check would warn below it and refuse above it.
Image.MAX_IMAGE_PIXELS = None

# What Pillow's readers raise on bad bytes. MemoryError is not among them: where sizes are checked first, it is ours.
BAD_DATA = (
    SyntaxError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

# Blocks of a PNG, WebP or GIF file that are walked at most, some 40 ms of work: 16 MiB of GIF's full
# blocks are half as many.
MAX_BLOCKS = 1 << 17

# TIFF 6.0 tag numbers.
WIDTH, HEIGHT, TILE_WIDTH, TILE_HEIGHT, SAMPLE_FORMAT, PROFILE = 256, 257, 322, 323, 339, 34675


class Outline(NamedTuple):
    """Size in pixels as stored, EXIF orientation, frames or pages, whether a colour profile is embedded."""

    width: int
    height: int
    orientation: int = 1
    frames: int = 1
    has_profile: bool = False


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Type, start and length of each whole chunk, IEND last (PNG, third edition, 5.3). Raises CorruptImage."""
    at = 8
    for _ in range(MAX_BLOCKS):
        if at + 12 > len(data):
            return
        length, kind = struct.unpack_from(">I4s", data, at)
        if at + 12 + length > len(data):
            return
        yield kind, at + 8, length
        if kind == b"IEND":
            return
        at += 12 + length
    raise UnsupportedImage(f"PNG of more than {MAX_BLOCKS} chunks")


def png_outline(data: bytes, max_frames: int) -> Outline:
    if data[12:16] != b"IHDR" or len(data) < 33:
        raise CorruptImage("truncated PNG: it ends in its header")
    width, height = struct.unpack_from(">II", data, 16)
    orientation, frames, has_profile = 1, 1, False
    for kind, start, length in png_chunks(data):
        if kind == b"acTL" and length >= 4:
            frames = max(1, int.from_bytes(data[start : start + 4], "big"))
        elif kind == b"eXIf":
            orientation = read_orientation(data[start : start + length], 0)
        elif kind == b"iCCP":
            has_profile = True
    return Outline(width, height, orientation, frames, has_profile)


def webp_outline(data: bytes, max_frames: int) -> Outline:
    """By the WebP container specification; the sizes of VP8 by RFC 6386, 9.1, of VP8L by RFC 9649, 3.4."""
    if len(data) < 30:
        raise CorruptImage("truncated WEBP: it ends in its header")
    announced = int.from_bytes(data[4:8], "little") + 8
    if announced > len(data):
        raise CorruptImage(f"truncated WEBP: {len(data)} of {announced} bytes")
    kind = data[12:16]
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return Outline(width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return Outline((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        return _extended_webp(data, max_frames)
    raise CorruptImage("damaged WEBP: its first chunk is no image")


def _extended_webp(data: bytes, max_frames: int) -> Outline:
    flags = data[20]
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    orientation, frames = 1, 0
    for kind, start, length in _riff_chunks(data):
        frames += kind == b"ANMF"
        if kind == b"EXIF":
            # Some writers put JPEG's prefix here too.
            skip = 6 if data.startswith(b"Exif\0\0", start) else 0
            orientation = read_orientation(data[start + skip : start + length], 0)
        if frames > max_frames:
            break
    return Outline(width, height, orientation, max(1, frames), bool(flags & 0x20))


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    at = 12
    for _ in range(MAX_BLOCKS):
        if at + 8 > len(data):
            return
        kind, length = struct.unpack_from("<4sI", data, at)
        yield kind, at + 8, length
        at += 8 + length + (length & 1)
    raise UnsupportedImage(f"WEBP of more than {MAX_BLOCKS} chunks")


def gif_outline(data: bytes, max_frames: int) -> Outline:
    """By GIF89a, sections 18 to 26. A first frame that reaches past the screen widens it, as Pillow has it."""
    if len(data) < 13:
        raise CorruptImage("truncated GIF: it ends in its header")
    width, height = struct.unpack_from("<HH", data, 6)
    frames, has_profile = 0, False
    for kind, start in _gif_blocks(data):
        if kind == b",":
            frames += 1
            if frames == 1:
                left, top, wide, high = struct.unpack_from("<HHHH", data, start)
                width, height = max(width, left + wide), max(height, top + high)
        has_profile = has_profile or data.startswith(b"\xff\x0bICCRGBG1012", start)
        if frames > max_frames:
            break
    if not frames:
        raise CorruptImage("truncated GIF: it ends before its first frame")
    return Outline(width, height, 1, frames, has_profile)


def _gif_blocks(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Kind and start of each extension ("!") and image (","), where its header is whole."""
    at = 13 + _colour_table_bytes(data[10])
    steps = 0
    while steps < MAX_BLOCKS and at + 10 < len(data):
        kind = data[at : at + 1]
        if kind not in (b"!", b","):
            # Pillow skips bytes that start no block; a trailer ends the file.
            if kind == b";":
                return
            at, steps = at + 1, steps + 1
            continue
        yield kind, at + 1
        at += 2 if kind == b"!" else 11 + _colour_table_bytes(data[at + 9])
        at, walked = _past_sub_blocks(data, at, MAX_BLOCKS - steps)
        steps += walked + 1
    if steps >= MAX_BLOCKS:
        raise UnsupportedImage(f"GIF of more than {MAX_BLOCKS} blocks")


def _colour_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _past_sub_blocks(data: bytes, at: int, most: int) -> tuple[int, int]:
    end = len(data)
    for walked in range(most):
        if at >= end or not data[at]:
            return at + 1, walked
        at += data[at] + 1
    return at, most


def bmp_outline(data: bytes, max_frames: int) -> Outline:
    """By Microsoft's BITMAPCOREHEADER (12 bytes) and BITMAPINFOHEADER; a negative height is stored top-down."""
    if len(data) < 26:
        raise CorruptImage("truncated BMP: it ends in its header")
    if data[14] == 12:
        return Outline(*struct.unpack_from("<HH", data, 18))
    width, height = struct.unpack_from("<ii", data, 18)
    return Outline(max(0, width), abs(height))


def tiff_outline(data: bytes, max_frames: int) -> Outline:
    try:
        layout = read_layout(data)
        page = read_directory(data, layout, layout.first_at)
    except (struct.error, ValueError) as error:
        raise CorruptImage("truncated or damaged TIFF: its first directory cannot be read") from error
    if WIDTH not in page.values or HEIGHT not in page.values:
        raise CorruptImage("damaged TIFF: it does not give its size")
    orientation = page.values.get(ORIENTATION, 1)
    pages = count_directories(data, layout, max_frames + 1)
    return Outline(
        page.values[WIDTH],
        page.values[HEIGHT],
        orientation if 1 <= orientation <= 8 else 1,
        pages,
        PROFILE in page.tags,
    )


def tiff_tile_pixels(data: bytes) -> int:
    """How many pixels one tile of the first page has, as a decoder allocates it whole; 0 without tiles."""
    layout = read_layout(data)
    values = read_directory(data, layout, layout.first_at).values
    return values.get(TILE_WIDTH, 0) * values.get(TILE_HEIGHT, 0)


def avif_outline(data: bytes, max_frames: int) -> Outline:
    """Pillow's AVIF decoder parses the boxes when it opens a file and allocates at the first frame."""
    try:
        with Image.open(io.BytesIO(data), formats=["AVIF"]) as image:
            orientation = image.getexif().get(ORIENTATION, 1)
            frames = getattr(image, "n_frames", 1)
            has_profile = "icc_profile" in image.info
            return Outline(*image.size, orientation if orientation in range(1, 9) else 1, frames, has_profile)
    except BAD_DATA as error:
        raise CorruptImage("truncated or damaged AVIF: its header cannot be read") from error
