"""The floor under a batch: counted work over ceilings measured on this very device."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bench.doctor.evidence import Roofline
from bench.doctor.subject import Subject, ms_per_batch

# Far over any cache (60 MB of L2 on an H200), and large enough to fill all SMs; a CPU's share of both.
_COPY_BYTES = {"cuda": 1 << 30, "cpu": 128 << 20}
_MATMUL_SIDE = {"cuda": 8192, "cpu": 1024}
_SECONDS = 0.5


def roofline(subject: Subject) -> Roofline:
    """Count the subject's work and measure the device's ceilings in its dtype."""
    batch = subject.batch
    return Roofline(
        flops=count_flops(subject.module, batch),
        bytes_moved=count_bytes(subject.module, batch),
        copy_bytes_s=copy_bytes_s(batch.device),
        matmul_flops_s=matmul_flops_s(batch.device, batch.dtype),
    )


def count_flops(module: nn.Module, batch: Tensor) -> float:
    """Floating-point operations of a forward; a multiply-add counts as two (torch.utils.flop_counter)."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(batch)
    return float(counter.get_total_flops())


def count_bytes(module: nn.Module, batch: Tensor) -> float:
    """The fewest bytes a forward can move: every weight once, the input, the output."""
    with torch.no_grad():
        output = module(batch)
    outputs = [output] if isinstance(output, Tensor) else []
    tensors = [*module.parameters(), *module.buffers(), batch, *outputs]
    return float(sum(tensor.nbytes for tensor in tensors))


def copy_bytes_s(device: torch.device) -> float:
    """Bytes read plus bytes written per second by a large copy on the device."""
    source = torch.ones(_COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (ms_per_batch(lambda: target.copy_(source), _SECONDS) / 1e3)


def matmul_flops_s(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a large matrix product, on random numbers: zeros run faster than real data."""
    side = _MATMUL_SIDE[device.type]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    return 2 * side**3 / (ms_per_batch(lambda: torch.mm(left, right, out=out), _SECONDS) / 1e3)
