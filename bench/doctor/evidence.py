"""What the layers saw. Everything that `diagnose` may use, and nothing of how it was measured."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.nvml import DeviceSamples
from bench.trace import TraceSummary


@dataclass(frozen=True, slots=True)
class DirectFeed:
    """The model fed with a tensor that already lies on its device.

    Attributes:
        ms_per_batch: wall, many batches issued one after the other.
    """

    batch_size: int
    ms_per_batch: float

    @property
    def img_s(self) -> float:
        """Images per second."""
        return self.batch_size * 1e3 / self.ms_per_batch


@dataclass(frozen=True, slots=True)
class ServiceMetrics:
    """A running service between two readings of its Prometheus metrics.

    Attributes:
        img_s: images answered per second.
        in_flight: images in the house on average (Little's law: rate times time in the house).
        batch_fill, batch_size: real images in a batch, and how many fit.
        decode_ms, queue_ms, forward_ms: of one image in these stages.
        cpus: that the service may use.
        decode_wait_ms: of one image before a decode thread takes it.
    """

    img_s: float
    in_flight: float
    batch_fill: float
    batch_size: int
    decode_ms: float
    queue_ms: float
    forward_ms: float
    cpus: int
    decode_wait_ms: float = 0.0

    @property
    def ms_per_batch(self) -> float:
        """From one batch to the next; 0 where none was answered."""
        return self.batch_fill * 1e3 / self.img_s if self.img_s else 0.0

    @property
    def waiting_to_decode(self) -> float:
        """Images before the decode threads on average, by Little's law."""
        return self.img_s * self.decode_wait_ms / 1e3

    @property
    def cpu_ceiling_img_s(self) -> float:
        """What the CPUs could decode, all of them at it."""
        return self.cpus * 1e3 / self.decode_ms if self.decode_ms else float("inf")

    @property
    def gpu_ceiling_img_s(self) -> float:
        """What one lane could answer in full batches, at the forward's present pace."""
        return self.batch_size * 1e3 / self.forward_ms if self.forward_ms else float("inf")


@dataclass(frozen=True, slots=True)
class Roofline:
    """The floor of one batch, from counts of the model and ceilings measured on this device.

    Attributes:
        flops: multiplications and additions of the matrix products and convolutions.
        bytes_moved: weights once, input and output; activations in between are left out, so the true figure is higher.
        copy_bytes_s: of a large copy on the device, bytes read plus bytes written.
        matmul_flops_s: of a large matrix product in the model's dtype.
    """

    flops: float
    bytes_moved: float
    copy_bytes_s: float
    matmul_flops_s: float

    @property
    def compute_ms(self) -> float:
        """The arithmetic alone."""
        return self.flops / self.matmul_flops_s * 1e3

    @property
    def memory_ms(self) -> float:
        """The moving of bytes alone."""
        return self.bytes_moved / self.copy_bytes_s * 1e3

    @property
    def floor_ms(self) -> float:
        """No program runs this batch faster on this device."""
        return max(self.compute_ms, self.memory_ms)


class Factor(StrEnum):
    """What an experiment changes."""

    HALF = "half precision"
    SYNC_OFF = "sync off"
    FIXED_SHAPE = "fixed shape"
    COMPILE = "compile"
    GRAPH = "CUDA graph"
    COMPILE_GRAPH = "compile + CUDA graph"


@dataclass(frozen=True, slots=True)
class Experiment:
    """One factor changed, on a copy of the model.

    Attributes:
        before_ms, after_ms: wall of a batch; None where it could not be had, and `note` says why.
    """

    factor: Factor
    before_ms: float | None = None
    after_ms: float | None = None
    note: str = ""

    @property
    def gain(self) -> float | None:
        """How many times faster; None where it was not measured."""
        return self.before_ms / self.after_ms if self.before_ms and self.after_ms else None


@dataclass(frozen=True, slots=True)
class Served:
    """What a running service says that it serves.

    Attributes:
        model: as the server's `--model` takes it.
        device: "cpu", or a GPU's name.
        dtype: as `--dtype` takes it.
        execution: how it runs, in the service's own words.
        preprocess: fields of `Preprocess`.
    """

    model: str
    device: str
    dtype: str
    batch_size: int
    execution: str
    preprocess: dict[str, Any]

    @property
    def on_gpu(self) -> bool:
        """Whether the service computes on a GPU."""
        return self.device != "cpu"

    @property
    def has(self) -> frozenset[Factor]:
        """What the service does already, so that it is no advice."""
        factors = {Factor.HALF} if self.dtype in ("fp16", "bf16") else set()
        if self.execution.startswith("compiled"):
            factors.add(Factor.COMPILE)
        if self.on_gpu and "CUDA graphs" in self.execution:
            # What is captured has one shape and waits for nothing.
            factors |= {Factor.GRAPH, Factor.COMPILE_GRAPH, Factor.FIXED_SHAPE, Factor.SYNC_OFF}
        return frozenset(factors)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All layers, in the order in which an engineer looks. None: not looked at."""

    device: DeviceSamples | None = None
    service: ServiceMetrics | None = None
    feed: DirectFeed | None = None
    trace: TraceSummary | None = None
    experiments: tuple[Experiment, ...] = ()
    roofline: Roofline | None = None
    served: Served | None = None
