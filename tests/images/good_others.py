"""Files of the other formats that decode."""

import struct

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from pipeline.sniff import SUPPORTED
from tests.images.corpus import Sample
from tests.images.make import (
    animation,
    encode,
    frames,
    photo,
    photo_array,
    png,
    png_chunk,
    png_rows,
    with_orientation,
)

ON_WHITE = ("composited on white",)


def samples() -> list[Sample]:
    return [*_pngs(), *_made_pngs(), *_keyed_pngs(), *_webps(), *_gifs(), *_bmps(), *_tiffs(), *_avifs()]


def on_white(rgba: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The slow reference: uint8 [height, width, 4] over white, rounded."""
    alpha = rgba[..., 3:].astype(np.float64) / 255
    return np.rint(rgba[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def _rgba() -> npt.NDArray[np.uint8]:
    ramp = np.tile(np.linspace(0, 255, 160).astype(np.uint8), (120, 1))
    return np.dstack([photo_array(), ramp])


def _grey() -> npt.NDArray[np.uint8]:
    return np.asarray(photo(mode="L"))


def _three(grey: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.repeat(grey[:, :, None], 3, axis=2)


def _pngs() -> list[Sample]:
    rgba = _rgba()
    la = np.dstack([_grey(), rgba[..., 3]])
    palette = photo().quantize(32)
    clear = bytes(range(0, 256, 8))
    seen = np.dstack([np.asarray(palette.convert("RGB")), np.frombuffer(clear, np.uint8)[np.asarray(palette)]])
    text = PngImagePlugin.PngInfo()
    text.add_text("long", "x" * (2 << 20), zip=True)
    first = np.asarray(frames()[0])
    bits = photo(mode="1")
    return [
        Sample("png", encode(photo(), "PNG"), "PNG", upright=photo_array()),
        Sample("png named .jpg", encode(photo(), "PNG"), "PNG", upright=photo_array()),
        Sample("png grey", encode(photo(mode="L"), "PNG"), "PNG", notes=("grey to RGB",), upright=_three(_grey())),
        Sample("png 1-bit", encode(bits, "PNG"), "PNG", notes=("1-bit",), upright=np.asarray(bits.convert("RGB"))),
        Sample(
            "png rgba", encode(Image.fromarray(rgba), "PNG"), "PNG", notes=ON_WHITE, upright=on_white(rgba), tolerance=1
        ),
        Sample(
            "png la",
            encode(Image.fromarray(la, "LA"), "PNG"),
            "PNG",
            notes=ON_WHITE,
            upright=on_white(np.dstack([_three(_grey()), la[..., 1]])),
            tolerance=1,
        ),
        Sample(
            "png palette", encode(palette, "PNG"), "PNG", notes=("palette",), upright=np.asarray(palette.convert("RGB"))
        ),
        Sample(
            "png palette with alpha",
            encode(palette, "PNG", transparency=clear),
            "PNG",
            notes=ON_WHITE,
            upright=on_white(seen),
            tolerance=1,
        ),
        Sample("png oversized text", encode(photo(), "PNG", pnginfo=text), "PNG", upright=photo_array()),
        Sample("png animated", animation("PNG"), "PNG", (80, 60), notes=("first of 3 frames",), upright=first),
        Sample("png 1x1", encode(photo(1, 1), "PNG"), "PNG", (1, 1), upright=photo_array(1, 1)),
        Sample("png 4000x1", encode(photo(4000, 1), "PNG"), "PNG", (4000, 1), upright=photo_array(4000, 1)),
        Sample("png orientation 6", with_orientation("PNG", 6), "PNG", (64, 96), 6, upright=photo_array(96, 64)),
    ]


def _made_pngs() -> list[Sample]:
    rng = np.random.default_rng(3)
    grey = rng.integers(0, 1 << 16, (20, 30, 1), np.uint16)
    rgb = rng.integers(0, 1 << 16, (20, 30, 3), np.uint16)
    rgba = rng.integers(0, 1 << 16, (20, 30, 4), np.uint16)
    high = (grey >> 8).astype(np.uint8)[..., 0]
    deep = ("16 bits to 8",)
    small = (30, 20)
    eight = png_rows((rgb >> 8).astype(np.uint8))
    return [
        Sample("png 16-bit grey", png(30, 20, 16, 0, png_rows(grey)), "PNG", small, notes=deep, upright=_three(high)),
        Sample(
            "png 16-bit rgb",
            png(30, 20, 16, 2, png_rows(rgb)),
            "PNG",
            small,
            notes=deep,
            upright=(rgb >> 8).astype(np.uint8),
        ),
        Sample(
            "png 16-bit rgba",
            png(30, 20, 16, 6, png_rows(rgba)),
            "PNG",
            small,
            notes=(*deep, *ON_WHITE),
            upright=on_white((rgba >> 8).astype(np.uint8)),
            tolerance=1,
        ),
        Sample(
            "png broken profile",
            png(30, 20, 8, 2, eight, png_chunk(b"iCCP", b"?\0\7?")),
            "PNG",
            small,
            notes=("profile",),
        ),
        Sample("png two acTL", png(30, 20, 8, 2, eight, *[png_chunk(b"acTL", bytes(8))] * 2), "PNG", small),
        Sample(
            "png without its end", png(30, 20, 8, 2, eight)[:-12], "PNG", small, upright=(rgb >> 8).astype(np.uint8)
        ),
    ]


def _keyed_pngs() -> list[Sample]:
    """A colour key: rows of 0, 1, 2, 3 in each depth, of which value 1 is transparent."""
    bits = np.array([[0, 255, 255, 0]], np.uint8)
    grey16 = np.array([[[0], [256], [257], [513]]], np.uint16)
    rgb = np.array([[[1, 2, 3], [1, 2, 4], [9, 9, 9], [1, 2, 3]]], np.uint8)
    keyed = rgb.copy()
    keyed[(rgb == (1, 2, 3)).all(axis=-1)] = 255
    return [
        Sample(
            "png 1-bit key",
            png(4, 1, 1, 0, b"\0\x60", png_chunk(b"tRNS", b"\0\0")),
            "PNG",
            (4, 1),
            notes=ON_WHITE,
            upright=_three(np.full_like(bits, 255)),
        ),
        Sample(
            "png 2-bit key",
            png(4, 1, 2, 0, b"\0\x1b", png_chunk(b"tRNS", b"\0\1")),
            "PNG",
            (4, 1),
            notes=ON_WHITE,
            upright=_three(np.array([[0, 255, 170, 255]], np.uint8)),
        ),
        Sample(
            "png 16-bit grey key",
            png(4, 1, 16, 0, png_rows(grey16), png_chunk(b"tRNS", struct.pack(">H", 257))),
            "PNG",
            (4, 1),
            notes=ON_WHITE,
            upright=_three(np.array([[0, 1, 255, 2]], np.uint8)),
        ),
        Sample(
            "png rgb key",
            png(4, 1, 8, 2, png_rows(rgb), png_chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))),
            "PNG",
            (4, 1),
            notes=ON_WHITE,
            upright=keyed,
        ),
    ]


def _webps() -> list[Sample]:
    rgba = _rgba()
    first = np.asarray(frames()[0])
    alpha = encode(Image.fromarray(rgba), "WEBP", lossless=True, exact=True)
    animated = animation("WEBP", lossless=True)
    turned = with_orientation("WEBP", 6, lossless=True)
    return [
        Sample("webp lossy", encode(photo(), "WEBP"), "WEBP", upright=photo_array(), tolerance=8, lossy=True),
        Sample("webp lossless", encode(photo(), "WEBP", lossless=True), "WEBP", upright=photo_array()),
        Sample("webp rgba", alpha, "WEBP", notes=ON_WHITE, upright=on_white(rgba), tolerance=1),
        Sample("webp animated", animated, "WEBP", (80, 60), notes=("first of 3 frames",), upright=first),
        Sample("webp orientation 6", turned, "WEBP", (64, 96), 6, upright=photo_array(96, 64)),
    ]


def _gifs() -> list[Sample]:
    still = photo(mode="P")
    clear = np.asarray(still.convert("RGB")).copy()
    clear[np.asarray(still) == 45] = 255
    animated = animation("GIF")
    seen = np.asarray(still.convert("RGB"))
    return [
        Sample("gif", encode(still, "GIF"), "GIF", notes=("palette",), upright=seen),
        Sample("gif grey", encode(photo(mode="L"), "GIF"), "GIF", upright=_three(_grey())),
        Sample("gif transparent", encode(still, "GIF", transparency=45), "GIF", notes=ON_WHITE, upright=clear),
        Sample("gif animated", animated, "GIF", (80, 60), notes=("first of 3 frames",)),
        Sample("gif without its end", encode(still, "GIF")[:-1], "GIF", notes=("palette",), upright=seen),
    ]


def _bmps() -> list[Sample]:
    core = struct.pack("<IHHHH", 12, 2, 1, 1, 24)
    tiny = b"BM" + struct.pack("<IHHI", 34, 0, 0, 26) + core + bytes([3, 2, 1, 6, 5, 4, 0, 0])
    info = struct.pack("<IiiHHIIiiII", 40, 2, -2, 1, 24, 0, 16, 0, 0, 0, 0)
    down = (
        b"BM" + struct.pack("<IHHI", 70, 0, 0, 54) + info + bytes([3, 2, 1, 6, 5, 4, 0, 0, 9, 8, 7, 12, 11, 10, 0, 0])
    )
    numbers = np.arange(1, 13, dtype=np.uint8).reshape(2, 2, 3)
    return [
        Sample("bmp", encode(photo(), "BMP"), "BMP", upright=photo_array()),
        Sample("bmp palette", encode(photo(mode="P"), "BMP"), "BMP", notes=("palette",)),
        Sample("bmp 1-bit", encode(photo(mode="1"), "BMP"), "BMP", notes=("1-bit",)),
        Sample("bmp core header", tiny, "BMP", (2, 1), upright=numbers[:1]),
        Sample("bmp top-down", down, "BMP", (2, 2), upright=numbers),
    ]


def _tiffs() -> list[Sample]:
    rgba = _rgba()
    ramp = (np.arange(2400, dtype=np.uint16) * 27).reshape(40, 60)
    deep = encode(Image.fromarray(ramp), "TIFF")
    high = _three((ramp >> 8).astype(np.uint8))
    pages = animation("TIFF")
    alpha = encode(Image.fromarray(rgba), "TIFF")
    turned = with_orientation("TIFF", 6)
    return [
        Sample("tiff", encode(photo(), "TIFF"), "TIFF", upright=photo_array()),
        Sample("tiff lzw", encode(photo(), "TIFF", compression="tiff_lzw"), "TIFF", upright=photo_array()),
        Sample("tiff deflate", encode(photo(), "TIFF", compression="tiff_deflate"), "TIFF", upright=photo_array()),
        Sample("tiff big", encode(photo(), "TIFF", big_tiff=True), "TIFF", upright=photo_array()),
        Sample("tiff grey 16-bit", deep, "TIFF", (60, 40), notes=("16 bits to 8",), upright=high),
        Sample("tiff rgba", alpha, "TIFF", notes=ON_WHITE, upright=on_white(rgba), tolerance=1),
        Sample("tiff cmyk", encode(photo(mode="CMYK"), "TIFF"), "TIFF", notes=("CMYK to RGB",), upright=photo_array()),
        Sample("tiff palette", encode(photo(mode="P"), "TIFF"), "TIFF", notes=("palette",)),
        Sample(
            "tiff of 3 pages", pages, "TIFF", (80, 60), notes=("first of 3 pages",), upright=np.asarray(frames()[0])
        ),
        Sample("tiff orientation 6", turned, "TIFF", (64, 96), 6, upright=photo_array(96, 64)),
    ]


def _avifs() -> list[Sample]:
    if "AVIF" not in SUPPORTED:
        return []
    animated = animation("AVIF")
    turned = with_orientation("AVIF", 6, quality=95, subsampling="4:4:4")
    return [
        Sample("avif", encode(photo(), "AVIF"), "AVIF", upright=photo_array(), tolerance=8, lossy=True),
        Sample("avif animated", animated, "AVIF", (80, 60), notes=("first of 3 frames",)),
        Sample("avif orientation 6", turned, "AVIF", (64, 96), 6, upright=photo_array(96, 64), tolerance=8, lossy=True),
    ]
