"""Whether a rung still answers what it should: its top-1 beside the reference's, over the files that are sent."""

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from bench.ladder.legacy_transforms import decode
from pipeline.model import Model
from pipeline.reference import normalize, reference_levels
from warmlane.client import Client

# Enough callers for batches of several images.
_CALLERS = 8
_BATCH = 8
# cudnn.benchmark tries dozens of algorithms for each layer of a shape not seen before.
_TIMEOUT_S = 240.0


@torch.inference_mode()
def reference_top1(model: Model, files: Sequence[bytes]) -> list[int]:
    """Pillow, torchvision v2 and the model itself in float32 on the CPU."""
    found: list[int] = []
    for start in range(0, len(files), _BATCH):
        pixels = [np.asarray(decode(file)) for file in files[start : start + _BATCH]]
        levels = torch.stack([reference_levels(image, model.preprocess) for image in pixels])
        found += model.module(normalize(levels, model.preprocess)).argmax(dim=1).tolist()
    return found


def served_top1(target: str, files: Sequence[bytes]) -> list[int]:
    """What the service at `target` answers, several callers at a time."""
    with Client(target, timeout_s=_TIMEOUT_S) as client, ThreadPoolExecutor(_CALLERS) as callers:
        return [answer.predictions[0].index for answer in callers.map(client.classify, files)]


def visit_batch_sizes(target: str, files: Sequence[bytes], batch_size: int) -> float:
    """Have the service form batches of every size; seconds until all are answered.

    The first call of a group is taken at once and the others gather behind it. Whoever searches algorithms for each
    shape that is new has done so afterwards, and that time is not mistaken for its pace.
    """
    started_s, feed = time.monotonic(), itertools.cycle(files)
    client = Client(target, timeout_s=_TIMEOUT_S)
    with client, ThreadPoolExecutor(batch_size + 1) as callers:
        for count in range(1, batch_size + 2):
            list(callers.map(client.classify, itertools.islice(feed, count)))
    return time.monotonic() - started_s


def agreement(found: Sequence[int], expected: Sequence[int]) -> float:
    """Share of equal answers, 0 to 1."""
    return sum(one == other for one, other in zip(found, expected, strict=True)) / len(expected)
