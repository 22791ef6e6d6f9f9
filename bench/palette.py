"""Images that name themselves: solid colours, and a model whose classes they are. So each answer says whose it is.

    python -m server --model bench.palette:Palette ...     with the settings in `FLAGS`

The model does no work of its own, it only takes time, as a GPU does that leaves the CPU alone: WARMLANE_PALETTE_MS
milliseconds a batch. With WARMLANE_PALETTE_LOG=FILE it also writes down what reached a forward, and when.
"""

import functools
import io
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

# Far enough apart for a JPEG's rounding.
_STEP = 16
_LEVELS = 256 // _STEP
COLOURS = _LEVELS**3
FORWARD_MS = "WARMLANE_PALETTE_MS"
FORWARD_LOG = "WARMLANE_PALETTE_LOG"
_ENTRY = struct.Struct("<id")
_FORMATS = ("JPEG", "PNG", "BMP")
_SIDES = (16, 33, 48, 96)

# What makes the server hand the colours over as they are.
FLAGS = (
    *("--model", "bench.palette:Palette", "--no-compile"),
    *("--resize", "16", "--crop", "16", "--mean", "0,0,0", "--std", "1,1,1"),
)


class Palette(nn.Module):
    """[B, 3, H, W] of 0 to 1 to logits [B, COLOURS]: the nearest colour to the image's mean wins."""

    colours: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("colours", torch.tensor([rgb(colour) for colour in range(COLOURS)]) / 255)
        self._seconds = float(os.environ.get(FORWARD_MS, "0")) / 1e3
        self._log = os.environ.get(FORWARD_LOG, "")

    def forward(self, images: Tensor) -> Tensor:
        """See the class."""
        started = time.monotonic()
        means = images.float().mean(dim=(2, 3))
        logits = -1e3 * (means[:, None] - self.colours).square().sum(dim=2)
        if self._log:
            _write_entries(self._log, logits.argmax(dim=1).tolist(), started)
        time.sleep(max(0.0, started + self._seconds - time.monotonic()))
        return logits


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
    yield from _ENTRY.iter_unpack(log.read_bytes())


def _write_entries(log: str, colours: list[int], started: float) -> None:
    # Several engines append to one file: one write of less than a page each is not torn.
    with open(log, "ab", buffering=0) as file:
        file.write(b"".join(_ENTRY.pack(colour, started) for colour in colours))
