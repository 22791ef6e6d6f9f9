"""Images that name themselves: solid colours, whose model is `bench.palette_model`. So each answer says whose it is.

    python -m server --model bench.palette_model:Palette ...     with the settings in `FLAGS`

Callers need the images and not the model, so that this module leaves torch alone.
"""

import functools
import io
import struct
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

# Far enough apart for a JPEG's rounding.
_STEP = 16
_LEVELS = 256 // _STEP
COLOURS = _LEVELS**3
FORWARD_MS = "WARMLANE_PALETTE_MS"
FORWARD_LOG = "WARMLANE_PALETTE_LOG"
ENTRY = struct.Struct("<id")
_FORMATS = ("JPEG", "PNG", "BMP")
_SIDES = (16, 33, 48, 96)

# What makes the server hand the colours over as they are.
FLAGS = (
    *("--model", "bench.palette_model:Palette", "--no-compile"),
    *("--resize", "16", "--crop", "16", "--mean", "0,0,0", "--std", "1,1,1"),
)


def rgb(colour: int) -> tuple[int, int, int]:
    """Red, green and blue, 0 to 255, of one of COLOURS."""
    red, rest = divmod(colour, _LEVELS**2)
    green, blue = divmod(rest, _LEVELS)
    return tuple(level * _STEP + _STEP // 2 for level in (red, green, blue))  # type: ignore[return-value]


@functools.cache
def picture(colour: int) -> bytes:
    """An image file of one colour; formats and sizes vary with the colour."""
    side = _SIDES[colour // len(_FORMATS) % len(_SIDES)]
    file = io.BytesIO()
    Image.new("RGB", (side, side), rgb(colour)).save(file, _FORMATS[colour % len(_FORMATS)], quality=95)
    return file.getvalue()


def forwards(log: Path) -> Iterator[tuple[int, float]]:
    """The colour of each image that reached a forward, and when that began, in seconds of CLOCK_MONOTONIC."""
    yield from ENTRY.iter_unpack(log.read_bytes())
