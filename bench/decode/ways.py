"""Ways from a JPEG's bytes to pixels, and what each costs one core."""

import importlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import cycle
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torchvision.io import ImageReadMode
from torchvision.io import decode_jpeg as torchvision_decode

from pipeline.decoders import decode_into_slot
from pipeline.headers import Limits
from pipeline.options import CUDA_CANVAS
from pipeline.preprocess import Preprocess
from pipeline.request import Request
from pipeline.slots import Slot, SlotPool

# Slots that no cache of a usual CPU holds: 340 KB of each are written.
COLD_SLOTS = 128
OWN, OWN_COLD, OWN_CROP = "warmlane, window in a warm slot", "warmlane, in slots by turns", "warmlane, finished crop"


@dataclass(frozen=True, slots=True)
class Way:
    """One way of decoding.

    Attributes:
        prepare: what is not measured: the file in the form that `run` takes.
        run: decodes one image.
    """

    name: str
    prepare: Callable[[bytes], Any]
    run: Callable[[Any], Any]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """Stands for a model, of which decoding needs no more than this."""

    preprocess: Preprocess


def bare_ways() -> tuple[list[Way], dict[str, str]]:
    """The libraries' own decode to RGB, whole image, as each gives it; and why others cannot be measured here."""
    ways = [
        Way("simplejpeg", bytes, simplejpeg.decode_jpeg, metadata.version("simplejpeg")),
        Way("torchvision", _as_tensor, _decode_with_torchvision, metadata.version("torchvision")),
        Way("Pillow", bytes, _decode_with_pillow, metadata.version("pillow")),
    ]
    missing = {}
    for name, find in (("OpenCV", _opencv), ("torchcodec", _torchcodec)):
        try:
            ways.append(find())
        except (ImportError, RuntimeError, OSError) as error:
            missing[name] = str(error).strip().split("\n")[0]
    return ways, missing


def own_ways(preprocess: Preprocess, limits: Limits) -> list[Way]:
    """From bytes to what the engine takes, as the decode threads do it: with header, checks and limits."""
    served = Served(preprocess)

    def run(request: Request) -> None:
        decode_into_slot(request, limits, served)

    warm, cold = SlotPool(1, CUDA_CANVAS), SlotPool(COLD_SLOTS, CUDA_CANVAS)
    # On a CPU the slot is no larger than the crop.
    finished = SlotPool(1, max(preprocess.crop))
    for pool in (warm, cold, finished):
        pool.block.fill_(1)  # or the first write to each page would be measured
    return [Way(name, _into(pool.slots), run) for name, pool in ((OWN, warm), (OWN_COLD, cold), (OWN_CROP, finished))]


def cpu_us(ways: Sequence[Way], files: Sequence[bytes], rounds: int) -> Iterator[Mapping[str, float]]:
    """CPU time of an image by each way, in microseconds, once a round: the ways take turns."""
    for _ in range(rounds):
        yield {way.name: _cpu_us(way, files) for way in ways}


def _cpu_us(way: Way, files: Sequence[bytes]) -> float:
    inputs = [way.prepare(file) for file in files]
    started_s = time.thread_time()
    for each in inputs:
        way.run(each)
    return 1e6 * (time.thread_time() - started_s) / len(files)


def _into(slots: Sequence[Slot]) -> Callable[[bytes], Request]:
    turns = cycle(slots)
    return lambda file: Request(file, "", next(turns))


def _as_tensor(file: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(file), dtype=torch.uint8)


def _decode_with_torchvision(file: torch.Tensor) -> torch.Tensor:
    pixels: torch.Tensor = torchvision_decode(file, ImageReadMode.RGB)
    return pixels


def _decode_with_pillow(file: bytes) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))


def _opencv() -> Way:
    cv2: Any = importlib.import_module("cv2")
    cv2.setNumThreads(1)

    def run(file: Any) -> Any:
        return cv2.imdecode(file, cv2.IMREAD_COLOR_RGB)

    return Way("OpenCV", lambda file: np.frombuffer(file, np.uint8), run, cv2.__version__)


def _torchcodec() -> Way:
    decoders: Any = importlib.import_module("torchcodec.decoders")
    return Way("torchcodec", _as_tensor, decoders.decode_jpeg, metadata.version("torchcodec"))
