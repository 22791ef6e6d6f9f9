"""A model that tells images apart and takes its time, to be served as `tests.slow_model:Levels`.

The class of an image is its mean grey level, 0 to 255, so that each answer says which image it belongs to. It proves
nothing about real models. Some levels do more:

    HELD        its batch waits for `gate`, which tests in the same process close and open
    2 to 9      its batch takes that many tenths of a second
    BROKEN      its batch raises
    127         what the server warms up with: waits for `warm_gate`
"""

import io
import threading
import time

import torch
from PIL import Image
from torch import Tensor, nn

HELD = 1
BROKEN = 10
_WARM_UP = 127
_LONGEST_WAIT_S = 30.0

# What makes the server hand the pixels over as they are.
FLAGS = ("--model", "tests.slow_model:Levels", "--resize", "8", "--crop", "8", "--mean", "0,0,0", "--std", "1,1,1")

gate = threading.Event()
warm_gate = threading.Event()
gate.set()
warm_gate.set()
# The level of every image that reached a forward.
seen: list[int] = []


class Levels(nn.Module):
    levels: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("levels", torch.arange(256.0))

    def forward(self, images: Tensor) -> Tensor:
        levels = (images.mean(dim=(1, 2, 3)) * 255).round()
        for level in levels.int().tolist():
            _act(level)
        return -((self.levels - levels[:, None]) ** 2)


class Slow(Levels):
    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.5)
        return super().forward(images)


class Fragile(Levels):
    """Loses its device at one level, and compiles something at another."""

    LOST, COMPILES = 11, 12

    def forward(self, images: Tensor) -> Tensor:
        level = round(float(images[0].mean()) * 255)
        if level == self.LOST:
            raise torch.AcceleratorError("an illegal memory access was encountered")
        if level == self.COMPILES:
            # Only here: it takes a second, and a server that compiles nothing does without.
            from torch._dynamo.utils import counters

            counters["stats"]["unique_graphs"] += 1
        return super().forward(images)


class Overflowing(Levels):
    """Has no numbers for one level."""

    OVERFLOWS = 13

    def forward(self, images: Tensor) -> Tensor:
        scores = super().forward(images)
        scores[(images[:, 0, 0, 0] * 255).round() == self.OVERFLOWS, 7] = torch.nan
        return scores


class NeverWarm(Levels):
    def forward(self, images: Tensor) -> Tensor:
        if float(images.mean()) > 0:
            time.sleep(_LONGEST_WAIT_S)
        return super().forward(images)


class BrokenWhenWarming(Levels):
    def forward(self, images: Tensor) -> Tensor:
        if float(images.mean()) > 0:
            raise RuntimeError("no kernel for this")
        return super().forward(images)


def _act(level: int) -> None:
    seen.append(level)
    if level == HELD:
        gate.wait(_LONGEST_WAIT_S)
    elif level == _WARM_UP:
        warm_gate.wait(_LONGEST_WAIT_S)
    elif level == BROKEN:
        raise RuntimeError("the secret words of a trace")
    elif 2 <= level <= 9:
        time.sleep(level / 10)


def solid(level: int, side: int = 8) -> bytes:
    """A PNG of one grey level."""
    file = io.BytesIO()
    Image.new("L", (side, side), level).save(file, "PNG")
    return file.getvalue()
