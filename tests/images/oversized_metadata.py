"""Images with far more metadata than image, all of which is skipped."""

import struct
import zlib

import numpy as np
from PIL import Image

from pipeline.sniff import SUPPORTED
from tests.images.corpus import Sample
from tests.images.make import after_soi, encode, jpeg_segment, photo, photo_array, png, png_chunk, png_rows

_MEGABYTE = 1 << 20
_SMALL = photo_array(30, 20)


def samples() -> list[Sample]:
    return [*_jpegs(), *_pngs(), *_others()]


def _jpegs() -> list[Sample]:
    plain = encode(photo(), "JPEG")
    longest = bytes(65_533)
    xmp = jpeg_segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + longest[:65_000])
    profile = [jpeg_segment(0xE2, b"ICC_PROFILE\0" + bytes([part, 255]) + longest[:65_000]) for part in range(1, 101)]
    # A maker's note that fills the segment, as raw thumbnails in it do.
    note = b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 1, 0x927C, 7, 65_000, 26) + bytes(4) + longest[:65_000]
    return [
        Sample("jpeg of 10 MB of extended xmp", after_soi(plain, xmp * 160)),
        Sample("jpeg of a 6 MB profile", after_soi(plain, b"".join(profile)), notes=("colour profile ignored",)),
        Sample("jpeg of a full exif segment", after_soi(plain, jpeg_segment(0xE1, note))),
        Sample("jpeg of 4000 comments", after_soi(plain, jpeg_segment(0xFE, b"x") * 4000)),
        Sample("jpeg of a full comment", after_soi(plain, jpeg_segment(0xFE, longest))),
    ]


def _pngs() -> list[Sample]:
    rows = png_rows(_SMALL)
    bomb = zlib.compress(bytes(100 * _MEGABYTE), 9)
    chunks = {
        "png of text that unpacks to 100 MB": png_chunk(b"zTXt", b"Comment\0\0" + bomb),
        "png of a profile that unpacks to 100 MB": png_chunk(b"iCCP", b"profile\0\0" + bomb),
        "png of 8 MB of text": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"x" * (8 * _MEGABYTE)),
        "png of 8 MB of exif": png_chunk(b"eXIf", b"II*\0\x08\0\0\0\0\0" + bytes(8 * _MEGABYTE)),
    }
    return [
        Sample(name, png(30, 20, 8, 2, rows, chunk), "PNG", (30, 20), notes=_notes(name), upright=_SMALL)
        for name, chunk in chunks.items()
    ]


def _notes(name: str) -> tuple[str, ...]:
    return ("colour profile ignored",) if "profile" in name else ()


def _others() -> list[Sample]:
    small = Image.fromarray(_SMALL)
    large = bytes(4 * _MEGABYTE)
    files = {
        "webp of 4 MB of xmp": encode(small, "WEBP", lossless=True, xmp=large),
        "webp of 4 MB of exif": encode(small, "WEBP", lossless=True, exif=b"II*\0\x08\0\0\0\0\0" + large),
        "tiff of 4 MB of a private tag": encode(small, "TIFF", tiffinfo={65_000: large}),
        "tiff of a 4 MB profile": encode(small, "TIFF", icc_profile=large),
    }
    comment = encode(small.convert("P"), "GIF", comment=np.random.default_rng(5).bytes(_MEGABYTE))
    found = [
        Sample(
            name,
            data,
            name.split()[0].upper(),
            (30, 20),
            notes=_notes(name),
            upright=_SMALL,
        )
        for name, data in files.items()
    ]
    avif = "AVIF" in SUPPORTED
    return [
        *found,
        Sample("gif of a 1 MB comment", comment, "GIF", (30, 20), notes=("palette expanded",)),
        *([Sample("avif of 4 MB of xmp", encode(small, "AVIF", xmp=large), "AVIF", (30, 20))] if avif else []),
    ]
