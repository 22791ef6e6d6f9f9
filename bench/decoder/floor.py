"""The floor under a step: all weights and what the caches hold, read once at the bandwidth measured on this device."""

from dataclasses import dataclass

import torch

from bench.decoder.model import Decoder, Sizes
from bench.doctor.evidence import Roofline
from bench.doctor.roofline import copy_bytes_s, matmul_flops_s


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device can do.

    Attributes:
        copy_bytes_s: bytes read plus bytes written per second by a large copy.
        matmul_flops_s: operations per second of a large product, by dtype.
    """

    copy_bytes_s: float
    matmul_flops_s: dict[torch.dtype, float]


def measure_ceilings(device: torch.device) -> Ceilings:
    """On this device, now; a CPU's half precision is taken to be no faster than its fp32."""
    dtypes = (torch.float32, torch.float16)
    if device.type == "cpu":
        flops_s = dict.fromkeys(dtypes, matmul_flops_s(device, torch.float32))
    else:
        flops_s = {dtype: matmul_flops_s(device, dtype) for dtype in dtypes}
    return Ceilings(copy_bytes_s(device), flops_s)


def step_floor(sizes: Sizes, dtype: torch.dtype, batch: int, seen: float, ceilings: Ceilings) -> Roofline:
    """The floor of one step, one token for each of `batch` texts.

    Args:
        seen: tokens in each cache, on average over the steps.
    """
    weights = parameters(sizes)
    cached = 2 * sizes.layers * sizes.kv_heads * sizes.head * seen * batch
    attention = 4 * sizes.layers * sizes.width * seen * batch
    return Roofline(
        flops=2.0 * weights * batch + attention,
        bytes_moved=(weights + cached) * dtype.itemsize,
        copy_bytes_s=ceilings.copy_bytes_s,
        matmul_flops_s=ceilings.matmul_flops_s[dtype],
    )


def parameters(sizes: Sizes) -> int:
    """Weights that a step reads: the embedding is also the output matrix, so it is read in full."""
    with torch.device("meta"):
        model = Decoder(sizes)
    return sum(parameter.numel() for parameter in model.parameters())
