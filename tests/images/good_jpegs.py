"""JPEG files that decode."""

import numpy as np
import simplejpeg
from PIL import ImageCms

from tests.images.corpus import Sample
from tests.images.make import (
    after_soi,
    animation,
    encode,
    frames,
    jpeg_segment,
    lossless_grey_jpeg,
    patched,
    photo,
    photo_array,
    segment_at,
    thumbnail_exif,
    with_orientation,
)


def samples() -> list[Sample]:
    return [*_plain(), *_metadata(), *_colours(), *_endings(), *_processes()]


def _plain() -> list[Sample]:
    return [
        Sample("jpeg 4:4:4", encode(photo(), "JPEG", subsampling=0), upright=photo_array(), tolerance=8, lossy=True),
        Sample("jpeg 4:2:2", encode(photo(), "JPEG", subsampling=1)),
        Sample("jpeg 4:2:0", encode(photo(), "JPEG", subsampling=2)),
        Sample("jpeg 4:2:0 odd size", encode(photo(101, 77), "JPEG", subsampling=2), size=(101, 77)),
        Sample("jpeg 4:2:2 odd size", encode(photo(33, 17), "JPEG", subsampling=1), size=(33, 17)),
        Sample("jpeg of restart intervals", encode(photo(), "JPEG", restart_marker_blocks=3)),
        Sample("jpeg optimized", encode(photo(), "JPEG", optimize=True, quality=30)),
        Sample("jpeg 1x1", encode(photo(1, 1), "JPEG"), size=(1, 1)),
        Sample("jpeg 1x4000", encode(photo(1, 4000), "JPEG"), size=(1, 4000)),
        Sample("jpeg 4000x1", encode(photo(4000, 1), "JPEG"), size=(4000, 1)),
        Sample("jpeg 500x375", encode(photo(500, 375), "JPEG", quality=90), size=(500, 375)),
    ]


def _metadata() -> list[Sample]:
    plain = encode(photo(), "JPEG")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = jpeg_segment(0xE1, thumbnail_exif())
    turned = [
        Sample(
            f"jpeg orientation {orientation}",
            with_orientation("JPEG", orientation, subsampling=0, quality=98),
            size=(96, 64) if orientation < 5 else (64, 96),
            orientation=orientation,
            upright=photo_array(96, 64),
            tolerance=8,
            lossy=True,
        )
        for orientation in range(1, 9)
    ]
    return [
        *turned,
        Sample("jpeg orientation 9", with_orientation("JPEG", 9), size=(96, 64)),
        Sample("jpeg broken exif", after_soi(plain, jpeg_segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"))),
        Sample("jpeg cut exif", after_soi(plain, jpeg_segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x05\1\x12"))),
        Sample("jpeg with exif thumbnail", after_soi(plain, exif)),
        Sample("jpeg icc profile", encode(photo(), "JPEG", icc_profile=profile), notes=("colour profile ignored",)),
        Sample("jpeg comment", encode(photo(), "JPEG", comment=b"\xff\xd9 not the end \xff\xda")),
    ]


def _colours() -> list[Sample]:
    cmyk = encode(photo(mode="CMYK"), "JPEG")
    start, end = segment_at(cmyk, 0xEE)
    without_adobe = cmyk[:start] + cmyk[end:]
    ycck = patched(cmyk, start + 15, b"\2")
    rgb = encode(photo(), "JPEG", keep_rgb=True, subsampling=0)
    progressive_cmyk = encode(photo(mode="CMYK"), "JPEG", progressive=True)
    unknown = patched(cmyk, start + 15, b"\x09")
    return [
        Sample("jpeg unknown adobe transform", unknown, notes=("Unknown Adobe", "YCCK to RGB")),
        Sample("jpeg grey", encode(photo(mode="L"), "JPEG"), notes=("grey to RGB",)),
        Sample("jpeg grey odd size", encode(photo(37, 53, "L"), "JPEG"), size=(37, 53), notes=("grey to RGB",)),
        Sample("jpeg rgb adobe transform 0", rgb, upright=photo_array(), tolerance=8, lossy=True),
        Sample("jpeg cmyk adobe", cmyk, notes=("CMYK to RGB",)),
        Sample("jpeg cmyk without adobe", without_adobe, notes=("CMYK to RGB",)),
        Sample("jpeg cmyk progressive", progressive_cmyk, notes=("CMYK to RGB",)),
        Sample("jpeg ycck", ycck, notes=("YCCK to RGB",)),
    ]


def _endings() -> list[Sample]:
    plain = encode(photo(), "JPEG")
    progressive = encode(photo(), "JPEG", progressive=True)
    missing = ("end marker missing",)
    return [
        Sample("jpeg without its end marker", plain[:-2], notes=missing),
        Sample("jpeg without its last byte", plain[:-1], notes=missing),
        Sample("jpeg progressive without its end marker", progressive[:-2], notes=missing),
        Sample("jpeg grey without its end marker", encode(photo(mode="L"), "JPEG")[:-2], notes=missing),
        Sample("jpeg rubbish after its end", plain + b"rubbish \xff\xd9 rubbish", notes=("18 bytes after the end",)),
        Sample("jpeg zeros after its end", plain + bytes(100), notes=("100 bytes after the end",)),
        Sample(
            "mpo of two pictures",
            animation("MPO", 2, subsampling=0, quality=98),
            size=(80, 60),
            notes=("bytes after the end",),
            upright=np.asarray(frames()[0]),
            tolerance=8,
            lossy=True,
        ),
    ]


def _processes() -> list[Sample]:
    plain = encode(photo(), "JPEG", subsampling=2)
    sof, _ = segment_at(plain, 0xC0)
    app0, after_app0 = segment_at(plain, 0xE0)
    junk = plain[:after_app0] + b"\0\1\2" + plain[after_app0:]
    small = photo(61, 43)
    return [
        Sample("jpeg progressive", encode(photo(), "JPEG", progressive=True)),
        Sample("jpeg progressive 4:4:4", encode(small, "JPEG", progressive=True, subsampling=0), size=(61, 43)),
        Sample("jpeg progressive grey", encode(photo(mode="L"), "JPEG", progressive=True), notes=("grey to RGB",)),
        Sample("jpeg extended sequential", patched(plain, sof + 1, b"\xc1")),
        Sample("jpeg extraneous bytes", junk, notes=("3 extraneous bytes",)),
        Sample("jpeg extraneous bytes, no end marker", junk[:-2], notes=("3 extraneous bytes", "end marker missing")),
        Sample("jpeg fill bytes", plain[:app0] + b"\xff\xff\xff" + plain[app0:]),
        Sample("jpeg unknown jfif revision", patched(plain, app0 + 9, b"\7"), notes=("unknown JFIF revision",)),
        Sample("jpeg 4:1:1", simplejpeg.encode_jpeg(photo_array(), colorsubsampling="411")),
        Sample("jpeg 4:4:0", simplejpeg.encode_jpeg(photo_array(), colorsubsampling="440")),
        # The entropy-coded bytes of these two mean nothing in their new frame, which no decoder can know.
        Sample("jpeg sampling 3x1", patched(plain, sof + 11, b"\x31"), decoder="pillow"),
        Sample("jpeg arithmetic", patched(plain, sof + 1, b"\xc9"), notes=("extraneous bytes",)),
        Sample(
            "jpeg lossless grey",
            lossless_grey_jpeg(),
            size=(16, 16),
            notes=("grey to RGB",),
            upright=np.full((16, 16, 3), 128, np.uint8),
            decoder="pillow",
        ),
    ]
