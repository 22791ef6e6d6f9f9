"""What the device itself would allow: its arithmetic, its memory, the bus to it."""

import copy
from collections.abc import Sequence

import torch

from bench.doctor.roofline import roofline
from bench.doctor.subject import Subject, ms_per_batch
from pipeline.lanes import DTYPES
from pipeline.model import Model
from pipeline.options import Options

_BUS_BYTES = 64 << 20
_BUS_SECONDS = 0.3


@torch.inference_mode()
def ceiling(model: Model, options: Options, batch_sizes: Sequence[int]) -> dict[str, float]:
    """Images per second that each would allow alone, by batch size and cause."""
    device, dtype = torch.device(options.device), DTYPES[options.dtype]
    module = copy.deepcopy(model.module).to(device, dtype)
    found = {}
    for size in batch_sizes:
        floor = roofline(Subject(module, torch.rand(size, 3, *model.preprocess.crop, device=device, dtype=dtype)))
        found[f"{size} by arithmetic"] = 1e3 * size / floor.compute_ms
        found[f"{size} by memory"] = 1e3 * size / floor.memory_ms
    if options.on_gpu:
        found["by the bus"] = _bus_bytes_s(device) / (3 * options.canvas_for(model) ** 2)
    return found


def _bus_bytes_s(device: torch.device) -> float:
    """Bytes per second from pinned memory to the device."""
    source = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    return _BUS_BYTES / (ms_per_batch(lambda: target.copy_(source, non_blocking=True), _BUS_SECONDS) / 1e3)
