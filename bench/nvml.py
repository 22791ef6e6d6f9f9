"""NVML samples beside the CPU's use, taken while something else runs."""

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, Self

import psutil

# NVML renews its utilisation every 1/6 s to 1 s (nvmlUtilization_t); sampling faster repeats the figure.
_PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """NVML beside the CPU, while work ran: means over `samples`.

    Attributes:
        util_percent: time in which any kernel ran, however small; NVML's own figure, never `TraceSummary.gpu_busy`.
        memory_percent: time in which device memory was read or written.
        sm_clock_mhz, sm_clock_max_mhz: of the SMs, now and at most.
        power_w, power_limit_w: drawn, and the enforced limit.
        cpu_percent: of all the machine's CPUs.
    """

    name: str
    samples: int
    util_percent: float
    memory_percent: float
    sm_clock_mhz: float
    sm_clock_max_mhz: float
    power_w: float
    power_limit_w: float
    cpu_percent: float


class Moment(NamedTuple):
    """One sample: when, in seconds of CLOCK_MONOTONIC, and what `DeviceSamples` calls by the same names."""

    at_s: float
    util_percent: float
    memory_percent: float
    sm_clock_mhz: float
    power_w: float


class NvmlError(RuntimeError):
    """NVML cannot be read here; the message is one line that says why."""


class Sampler:
    """Samples one GPU for as long as the `with` block lasts; `samples()` afterwards.

    Args:
        index: of the GPU as NVML counts, whatever CUDA_VISIBLE_DEVICES says.

    Raises:
        NvmlError: on creation, if the library, the driver or the GPU is missing.
    """

    def __init__(self, index: int = 0) -> None:
        self._nvml = _load_nvml()
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml.nvmlDeviceGetUtilizationRates(self._handle)
        except self._nvml.NVMLError as error:
            raise NvmlError(f"NVML: the use of GPU {index} cannot be read ({error})") from None
        self._rows: list[tuple[float, ...]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="nvml", daemon=True)

    def __enter__(self) -> Self:
        psutil.cpu_percent()  # its first call only sets the starting point
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def samples(self) -> DeviceSamples:
        """Means over the block; the first sample is left out where there are more, since it shows what ran before."""
        rows = self._rows[1:] or self._rows
        _, util, memory, clock, power, cpu = (fmean(column) for column in zip(*rows, strict=True))
        nvml, handle = self._nvml, self._handle
        return DeviceSamples(
            name=nvml.nvmlDeviceGetName(handle),
            samples=len(rows),
            util_percent=util,
            memory_percent=memory,
            sm_clock_mhz=clock,
            sm_clock_max_mhz=self._read(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            power_w=power,
            power_limit_w=self._read(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1e3,
            cpu_percent=cpu,
        )

    def history(self) -> list[Moment]:
        """Every sample, oldest first; also while the block lasts."""
        return [Moment(*row[:5]) for row in list(self._rows)]

    def _sample(self) -> None:
        while True:
            is_last = self._stop.wait(_PERIOD_S)
            self._rows.append(self._row())
            if is_last:
                return

    def _row(self) -> tuple[float, ...]:
        nvml, handle = self._nvml, self._handle
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        clock_mhz = self._read(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        power_mw = self._read(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return time.monotonic(), rates.gpu, rates.memory, clock_mhz, power_mw / 1e3, psutil.cpu_percent()

    def _read(self, ask: Callable[[], float]) -> float:
        """A figure that some GPUs do not offer: 0 there."""
        try:
            return ask()
        except self._nvml.NVMLError:
            return 0.0


def _load_nvml() -> Any:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlError("NVML: the package nvidia-ml-py is not installed (pip install nvidia-ml-py)") from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NvmlError(f"NVML: no NVIDIA driver answers here ({error})") from None
    return nvml
