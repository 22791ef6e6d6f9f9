"""Images that must be refused, and with which words."""

import struct
import zlib

import numpy as np
from PIL import Image

from pipeline.errors import BadImage, CorruptImage, ImageTooLarge, UnsupportedImage
from pipeline.sniff import SUPPORTED
from tests.images.corpus import Sample
from tests.images.make import (
    after_soi,
    encode,
    gif_of_frames,
    jpeg_segment,
    patched,
    photo,
    png,
    png_chunk,
    scan_starts,
    segment_at,
    thumbnail_exif,
    tiff,
    tiff_claiming,
    webp_claiming,
    webp_of_frames,
)


def samples() -> list[Sample]:
    return [
        *_cut_jpegs(),
        *_odd_jpegs(),
        *_cut_others(),
        *_too_large(),
        *_odd_others(),
    ]


def _refused(name: str, data: bytes, error: type[BadImage], *words: str, kind: str = "") -> Sample:
    return Sample(name, data, kind, error=error, words=words)


def _cut_jpegs() -> list[Sample]:
    plain = encode(photo(), "JPEG")
    progressive = encode(photo(), "JPEG", progressive=True)
    starts = scan_starts(progressive)
    junk = after_soi(plain, b"\0\1\2")
    thumbnail = after_soi(plain, jpeg_segment(0xE1, thumbnail_exif()))
    cmyk = encode(photo(mode="CMYK"), "JPEG")
    half = len(plain) // 2
    files = {
        "jpeg of its first bytes": plain[:4],
        "jpeg cut in its header": plain[:100],
        "jpeg cut after its header": plain[: segment_at(plain, 0xDA)[1]],
        "jpeg cut in half": plain[:half],
        "jpeg cut in half, end marker put back": plain[:half] + b"\xff\xd9",
        "jpeg of extraneous bytes cut in half": junk[:half],
        "jpeg of extraneous bytes cut in half, end marker put back": junk[:half] + b"\xff\xd9",
        "jpeg cut in half with exif thumbnail": thumbnail[: len(thumbnail) - half],
        "jpeg without its last hundred bytes": plain[:-100],
        "jpeg progressive cut between scans": progressive[: starts[5]],
        "jpeg progressive cut after its first scan": progressive[: starts[1]],
        "jpeg progressive cut in its last scan": progressive[: (starts[-1] + len(progressive)) // 2],
        "jpeg progressive cut in a scan": progressive[: starts[3] + 40],
        "jpeg cmyk cut in half": cmyk[: len(cmyk) // 2],
        "jpeg grey cut in half": (grey := encode(photo(mode="L"), "JPEG"))[: len(grey) // 2],
    }
    return [_refused(name, data, CorruptImage, "truncated JPEG", kind="JPEG") for name, data in files.items()]


def _odd_jpegs() -> list[Sample]:
    plain = encode(photo(), "JPEG")
    start, end = segment_at(plain, 0xC0)
    frame = plain[start:end]
    two = jpeg_segment(0xC0, patched(frame[4:-3], 5, b"\2"))
    scan, after = segment_at(plain, 0xDA)
    loose = patched(plain, start + 1, b"\xc9")[:-2]
    blank = patched(plain, after + 40, b"\x55\xff\x00\x91" * 100)
    return [
        _refused("jpeg 12-bit", patched(plain, start + 4, b"\x0c"), UnsupportedImage, "12 bits", kind="JPEG"),
        _refused(
            "jpeg hierarchical", patched(plain, start + 1, b"\xc5"), UnsupportedImage, "hierarchical", kind="JPEG"
        ),
        _refused("jpeg of two components", plain[:start] + two + plain[end:], UnsupportedImage, "2 comp", kind="JPEG"),
        _refused("jpeg of two frames", plain[:end] + frame + plain[end:], CorruptImage, "two frame", kind="JPEG"),
        _refused("jpeg of no width", patched(plain, start + 7, b"\0\0"), CorruptImage, "0x120", kind="JPEG"),
        _refused("jpeg without frame", plain[:start] + plain[end:], CorruptImage, "frame", kind="JPEG"),
        _refused("jpeg without scan", plain[:scan] + b"\xff\xd9", CorruptImage, "before its image", kind="JPEG"),
        _refused("jpeg of left-over data, no end marker", loose, CorruptImage, "extraneous", kind="JPEG"),
        _refused("jpeg of damaged data", blank, CorruptImage, "JPEG", kind="JPEG"),
        _refused("jpeg of 600 scans", _many_scans(), UnsupportedImage, "500 scans", kind="JPEG"),
    ]


def _many_scans() -> bytes:
    progressive = encode(photo(), "JPEG", progressive=True)
    first, second, *_ = scan_starts(progressive)
    return progressive[:first] + progressive[first:second] * 600 + progressive[second:]


def _cut_others() -> list[Sample]:
    files = {
        "PNG": encode(photo(), "PNG"),
        "GIF": encode(photo(mode="P"), "GIF"),
        "WEBP": encode(photo(), "WEBP"),
        "BMP": encode(photo(), "BMP"),
        "TIFF": encode(photo(), "TIFF"),
    }
    cut = [
        _refused(
            f"{kind.lower()} cut at {share:.0%}",
            data[: int(len(data) * share)],
            CorruptImage,
            f"truncated {kind}",
            kind=kind,
        )
        for kind, data in files.items()
        for share in (0.02, 0.5, 0.95)
    ]
    coloured = png(2, 2, 8, 2, bytes(14))
    at = coloured.index(b"IDAT") + 6
    return [
        *cut,
        _refused("png of a wrong checksum", patched(coloured, at, b"\x55"), CorruptImage, "checksum", kind="PNG"),
        _refused("webp canvas that its image does not fill", webp_claiming(64, 64), CorruptImage, "WEBP", kind="WEBP"),
        *_cut_avif(),
    ]


def _cut_avif() -> list[Sample]:
    if "AVIF" not in SUPPORTED:
        return []
    data = encode(photo(), "AVIF")
    return [_refused("avif cut in half", data[: len(data) // 2], CorruptImage, "AVIF", kind="AVIF")]


def bomb_png(side: int = 12_000) -> bytes:
    """A one-bit PNG of 144 megapixels in 18 KB."""
    row = bytes(1 + side // 8)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def _too_large() -> list[Sample]:
    over = encode(photo(), "JPEG") + bytes(16 << 20)
    plain = encode(photo(), "JPEG")
    start, _ = segment_at(plain, 0xC0)
    huge_jpeg = patched(plain, start + 5, b"\xff\xff\xff\xff")
    pixels = "--max-image-pixels"
    return [
        _refused("over the byte limit", over, ImageTooLarge, str(len(over)), "16777216", "--max-image-bytes"),
        _refused("png of 144 megapixels", bomb_png(), ImageTooLarge, "144000000", "50000000", pixels, kind="PNG"),
        _refused("jpeg of 65535x65535", huge_jpeg, ImageTooLarge, "65535x65535", pixels, kind="JPEG"),
        _refused("webp of 16384x16384", webp_claiming(16384, 16384), ImageTooLarge, "16384x16384", pixels, kind="WEBP"),
        _refused("tiff of huge size", tiff_claiming(100_000, 100_000), ImageTooLarge, pixels, kind="TIFF"),
        _refused(
            "tiff of a huge tile",
            tiff_claiming(8, 8, (322, 1 << 16), (323, 1 << 16)),
            ImageTooLarge,
            "a tile",
            pixels,
            kind="TIFF",
        ),
        _refused(
            "gif of 3000 frames", gif_of_frames(3000), ImageTooLarge, "1001 frames", "--max-image-frames", kind="GIF"
        ),
        _refused(
            "webp of 3000 frames", webp_of_frames(3000), ImageTooLarge, "1001 frames", "--max-image-frames", kind="WEBP"
        ),
        _refused(
            "png of 5000 frames",
            png(1, 1, 8, 0, bytes(2), png_chunk(b"acTL", struct.pack(">II", 5000, 0))),
            ImageTooLarge,
            "5000 frames",
            "--max-image-frames",
            kind="PNG",
        ),
    ]


def _odd_others() -> list[Sample]:
    real = Image.fromarray(np.ones((4, 4), np.float32))
    floats, halves, doubles = (
        np.ones((4, 4, channels), kind) for channels, kind in ((3, "<f4"), (1, "<f2"), (1, "<f8"))
    )
    signed = np.ones((4, 4, 1), "<i2")
    inverted = tiff(np.ones((4, 4, 1), ">u2"), 0)
    whole = Image.fromarray(np.ones((4, 4), np.int32))
    long_runs = struct.pack("<IiiHHIIiiII", 40, 4000, 4000, 1, 8, 1, 0, 0, 0, 0, 0)
    bmp = b"BM" + struct.pack("<IHHI", 2000, 0, 0, 1078) + long_runs + bytes(2000)
    return [
        _refused("tiff of floats", encode(real, "TIFF"), UnsupportedImage, "floating-point", kind="TIFF"),
        _refused("tiff of float colours", tiff(floats, 2, 3), UnsupportedImage, "floating-point", kind="TIFF"),
        _refused("tiff of half floats", tiff(halves, 1, 3), UnsupportedImage, "floating-point", kind="TIFF"),
        _refused("tiff of doubles", tiff(doubles, 1, 3), UnsupportedImage, "floating-point", kind="TIFF"),
        _refused("tiff of signed samples", tiff(signed, 1, 2), UnsupportedImage, "signed", kind="TIFF"),
        _refused(
            "tiff 16-bit, white is zero, big-endian", inverted, UnsupportedImage, "unknown pixel mode", kind="TIFF"
        ),
        _refused("tiff of 32-bit integers", encode(whole, "TIFF"), UnsupportedImage, "32-bit", kind="TIFF"),
        _refused("tiff of lab", encode(photo().convert("LAB"), "TIFF"), UnsupportedImage, "L*a*b*", kind="TIFF"),
        _refused("bmp of long runs", bmp, UnsupportedImage, "run-length", kind="BMP"),
        _refused("tiff without a directory", b"II*\0\xff\xff\0\0", CorruptImage, "TIFF", kind="TIFF"),
        _refused("png of an unknown colour type", png(1, 1, 8, 5, bytes(2)), CorruptImage, "PNG", kind="PNG"),
    ]
