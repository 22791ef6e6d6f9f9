"""Was the model really compiled? A silent fall-back to eager kernels looks the same from outside, only slower.

At start, one batch is run eagerly and as served: both are timed, and on a GPU the profiler counts what the host
launched.
"""

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

log = logging.getLogger(__name__)

# A captured graph is one launch; a few copies or an uncaptured epilogue may stand beside it.
MAX_LAUNCHES = 5
# Compiling that gains less than this has most likely not happened.
MIN_SPEEDUP = 1.2
_TIMED_RUNS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """What one batch costs.

    Attributes:
        ms: wall time, the median of a few runs.
        launches: kernels and graphs that the host launched; 0 on a CPU.
        kernels: kernels that ran on the device; 0 on a CPU.
    """

    ms: float
    launches: int = 0
    kernels: int = 0

    def __str__(self) -> str:
        counts = f" ({self.launches} launches, {self.kernels} kernels)" if self.kernels else ""
        return f"{self.ms:.2f} ms{counts}"


def compare(eager: Callable[[], object], served: Callable[[], object], device: torch.device) -> str:
    """One line for people: what a batch costs eagerly and as served. Warns if the difference is suspiciously small."""
    before, after = measure(eager, device), measure(served, device)
    for suspicion in suspicions(before, after):
        log.warning("the model is slower than it should be: %s", suspicion)
    return f"a batch takes {after}, eager {before}"


def suspicions(eager: Cost, served: Cost) -> list[str]:
    """What speaks for a silent fall-back."""
    found = []
    if served.launches > MAX_LAUNCHES:
        found.append(f"{served.launches} launches a batch, not at most {MAX_LAUNCHES}: there is no CUDA graph")
    if eager.ms < MIN_SPEEDUP * served.ms:
        found.append(f"only {eager.ms / served.ms:.2f} times faster than eager: the compiled model may not be in use")
    return found


def measure(run: Callable[[], object], device: torch.device) -> Cost:
    """Time one batch and count its kernels. `run` may return before the device is done."""
    run()
    times_ms = [_timed_ms(run, device) for _ in range(_TIMED_RUNS)]
    launches, kernels = _count(run, device) if device.type == "cuda" else (0, 0)
    return Cost(statistics.median(times_ms), launches, kernels)


def _timed_ms(run: Callable[[], object], device: torch.device) -> float:
    _wait(device)
    started = time.perf_counter()
    run()
    _wait(device)
    return 1e3 * (time.perf_counter() - started)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _count(run: Callable[[], object], device: torch.device) -> tuple[int, int]:
    """Host launches and device kernels of one run."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        run()
        _wait(device)
    launches = kernels = 0
    for event in profiler.events() or ():
        on_device = event.device_type == torch._C._autograd.DeviceType.CUDA
        kernels += on_device and not event.name.startswith(("Memcpy", "Memset"))
        launches += not on_device and "Launch" in event.name and event.name.startswith("cu")
    return launches, kernels
