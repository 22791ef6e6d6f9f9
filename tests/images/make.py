"""Pictures, and the files made of them by Pillow or byte by byte."""

import io
import struct
import zlib
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

# Pillow's transpositions that turn an upright image into what is stored with each EXIF orientation.
STORED_AS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@cache
def photo_array(width: int = 160, height: int = 120) -> npt.NDArray[np.uint8]:
    """uint8 [height, width, 3]: gradients, edges and noise, all of it deterministic, no two sides alike."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    noise = np.random.default_rng(7).normal(0, 6, (height, width, 3))
    red = 255 * x / max(width - 1, 1)
    green = 255 * y / max(height - 1, 1)
    blue = 127 + 100 * np.sin(x / 9) * np.cos(y / 7)
    image = np.stack([red, green, blue], axis=-1)
    image[(x - width * 0.7) ** 2 + (y - height * 0.3) ** 2 < (height * 0.2) ** 2] = (250, 240, 20)
    return (image + noise).clip(0, 255).astype(np.uint8)


def photo(width: int = 160, height: int = 120, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(photo_array(width, height)).convert(mode)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def frames(count: int = 3) -> list[Image.Image]:
    """Frames of 80x60 that differ from each other all over."""
    upright = photo(80, 60)
    return [Image.fromarray(np.roll(np.asarray(upright), 20 * index, axis=1)) for index in range(count)]


def animation(kind: str, count: int = 3, **options: Any) -> bytes:
    first, *rest = frames(count)
    return encode(first, kind, save_all=True, append_images=rest, **options)


def with_orientation(kind: str, orientation: int, **options: Any) -> bytes:
    """The photo stored so that this orientation turns it upright again."""
    image = photo(96, 64)
    if orientation in STORED_AS:
        image = image.transpose(STORED_AS[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, kind, exif=exif, **options)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, depth: int, colour_type: int, rows: bytes, *chunks: bytes) -> bytes:
    """A PNG of raw rows, each with its filter byte, and of more chunks before the image data."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))
    body = png_chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + body + png_chunk(b"IEND", b"")


def png_rows(samples: npt.NDArray[Any]) -> bytes:
    """Rows of an array [height, width, channels] for `png`; 16-bit samples in the file's byte order."""
    big_endian = samples.astype(samples.dtype.newbyteorder(">"))
    return b"".join(b"\0" + row.tobytes() for row in big_endian)


def jpeg_segment(code: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, code, len(body) + 2) + body


def after_soi(jpeg: bytes, inserted: bytes) -> bytes:
    return jpeg[:2] + inserted + jpeg[2:]


def segment_at(jpeg: bytes, code: int) -> tuple[int, int]:
    """Start and end of the first segment of this code in the header, its marker included."""
    at = 2
    while jpeg[at + 1] != code:
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return at, at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def scan_starts(jpeg: bytes) -> list[int]:
    """Where each scan's SOS marker lies; for files whose other segments do not hold these two bytes."""
    return [at for at in range(len(jpeg) - 1) if jpeg[at : at + 2] == b"\xff\xda"]


def lossless_grey_jpeg(side: int = 16) -> bytes:
    """SOF3 with predictor 1 and one Huffman code, of one bit, for a difference of 0: flat grey of level 128."""
    table = jpeg_segment(0xC4, b"\0" + b"\1" + bytes(15) + b"\0")
    frame = jpeg_segment(0xC3, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    scan = jpeg_segment(0xDA, b"\1\1\0\1\0\0")
    return b"\xff\xd8" + table + frame + scan + bytes(side * side // 8) + b"\xff\xd9"


def gif_of_frames(count: int) -> bytes:
    """One-pixel frames: 15 bytes each."""
    frame = b",\0\0\0\0\1\0\1\0\0\2\2D\1\0"
    return b"GIF89a\1\0\1\0\x80\0\0\0\0\0\xff\xff\xff" + frame * count + b";"


def webp_claiming(width: int, height: int) -> bytes:
    """An extended WebP whose canvas is only claimed, with a small image inside."""
    inner = encode(photo(16, 16), "WEBP", lossless=True)[12:]
    canvas = bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + canvas + inner
    return b"RIFF" + struct.pack("<I", len(body)) + body


def webp_of_frames(count: int) -> bytes:
    """The headers of an animated WebP of 1x1 pixel, with empty frames."""
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + b"\2" + bytes(9) + (b"ANMF" + bytes(4)) * count
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff_claiming(width: int, height: int, *more: tuple[int, int]) -> bytes:
    """An uncompressed grey TIFF of LONG tags that claims a size, with 64 bytes of image data."""
    tags = sorted(
        [(256, width), (257, height), (258, 8), (259, 1), (262, 1), (273, 8), (278, height), (279, 64), *more]
    )
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 72) + bytes(64) + struct.pack("<H", len(tags)) + entries + bytes(4)


def thumbnail_exif() -> bytes:
    """EXIF with a JPEG thumbnail, so that an end marker lies in the header."""
    thumbnail = encode(photo(32, 24), "JPEG")
    first = struct.pack("<H", 0) + struct.pack("<I", 14)
    entries = struct.pack("<HHII", 0x0201, 4, 1, 44) + struct.pack("<HHII", 0x0202, 4, 1, len(thumbnail))
    second = struct.pack("<H", 2) + entries + bytes(4)
    return b"Exif\0\0II*\0" + struct.pack("<I", 8) + first + second + thumbnail


def tiff(samples: npt.NDArray[Any], photometric: int, sample_format: int = 1, *more: tuple[int, int]) -> bytes:
    """An uncompressed TIFF of an array [height, width, channels], in the array's byte order."""
    height, width, channels = samples.shape
    order = ">" if samples.dtype.byteorder == ">" else "<"
    bits = 8 * samples.dtype.itemsize
    each = (
        struct.pack(f"{order}{channels}H", *[bits] * channels),
        struct.pack(f"{order}{channels}H", *[sample_format] * channels),
    )
    body = samples.tobytes()
    bits_at = 8 + len(body)
    tags = {
        256: (4, 1, width),
        257: (4, 1, height),
        258: (3, channels, bits_at),
        259: (4, 1, 1),
        262: (4, 1, photometric),
        273: (4, 1, 8),
        277: (4, 1, channels),
        278: (4, 1, height),
        279: (4, 1, len(body)),
        339: (3, channels, bits_at + len(each[0])),
        **{tag: (4, 1, value) for tag, value in more},
    }
    if channels < 3:
        # So few SHORTs lie in the entry itself, from its first byte on.
        for tag, value in ((258, each[0]), (339, each[1])):
            tags[tag] = (3, channels, int.from_bytes(value.ljust(4, b"\0"), "big" if order == ">" else "little"))
    entries = b"".join(struct.pack(f"{order}HHII", tag, *tags[tag]) for tag in sorted(tags))
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", bits_at + sum(map(len, each)))
    return start + body + b"".join(each) + struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
