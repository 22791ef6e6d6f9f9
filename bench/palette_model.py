"""The model whose classes are the colours of `bench.palette`.

It does no work of its own, it only takes time, as a GPU does that leaves the CPU alone: WARMLANE_PALETTE_MS
milliseconds a batch. With WARMLANE_PALETTE_LOG=FILE it also writes down what reached a forward, and when.
"""

import os
import time

import torch
from torch import Tensor, nn

from bench.palette import COLOURS, ENTRY, FORWARD_LOG, FORWARD_MS, rgb


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


def _write_entries(log: str, colours: list[int], started: float) -> None:
    # Several engines append to one file: one write of less than a page each is not torn.
    with open(log, "ab", buffering=0) as file:
        file.write(b"".join(ENTRY.pack(colour, started) for colour in colours))
