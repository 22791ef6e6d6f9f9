"""The rungs: each breaks one habit of the legacy service, and keeps what the rungs before it have mended."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from bench.rungs import pick


@dataclass(frozen=True, slots=True)
class Incident:
    """What the published incident reports of a rung: one request in flight, so that qps is 1000 / wall_ms.

    Attributes:
        gpu_ms, wall_ms: of a request.
        gpu_util: as nvidia-smi shows it, 0 to 1.
    """

    gpu_ms: float
    wall_ms: float
    gpu_util: float
    qps: float


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder.

    Attributes:
        change: what is new against the rung before.
        needs_gpu: means nothing on a CPU, where it is left out.
    """

    number: int
    name: str
    change: str
    needs_gpu: bool = False
    incident: Incident | None = None


@dataclass(frozen=True, slots=True)
class Habits:
    """What a legacy service does wrong, in the order in which the rungs break it.

    Attributes:
        syncs: reads a number off the device for each image and each batch, and copies from pageable memory.
        augments: the training pipeline's random rotation, flip and colour jitter.
        varies: batches of whatever size is queued, no warm-up, cudnn.benchmark on.
        transforms_on_cpu: resize and normalize, in float32, before the copy to the device.
        eager: no torch.compile.
    """

    syncs: bool
    augments: bool
    varies: bool
    transforms_on_cpu: bool
    eager: bool


RUNGS = (
    Rung(
        0,
        "legacy service",
        "Pillow, training augmentation and transforms on the CPU, eager fp32, batches as they come, .item()",
        incident=Incident(10, 82, 0.12, 12),
    ),
    Rung(1, "no syncs", "metrics from what was copied back anyway, pinned copies", incident=Incident(10, 76, 0.13, 13)),
    Rung(2, "no augmentation", "the training branch is gone"),
    Rung(
        3,
        "fixed batch",
        "batches padded to one size, warmed up, cudnn.benchmark off",
        incident=Incident(14, 71, 0.20, 14),
    ),
    Rung(
        4,
        "transforms on GPU",
        "decoded into uint8 tensors, to the GPU at once, torchvision v2 there",
        needs_gpu=True,
        incident=Incident(17, 24, 0.70, 41),
    ),
    Rung(
        5,
        "torch.compile",
        'torch.compile(mode="reduce-overhead"): a CUDA graph',
        needs_gpu=True,
        incident=Incident(11, 15, 0.73, 66),
    ),
    Rung(6, "warmlane", "this service as one process: half precision, transforms in the graph, lanes"),
    Rung(7, "warmlane, several frontends", "calls and decoding in processes of their own, the engine in another"),
)
# This service: in one process, and with several frontends. The rungs before are the legacy one.
SERVED, SEVERAL = 6, 7


def habits_at(rung: int) -> Habits:
    """The habits that are left on a rung."""
    return Habits(*(rung < mended for mended in range(1, len(fields(Habits)) + 1)))


def pick_rungs(numbers: Sequence[int]) -> tuple[Rung, ...]:
    """The rungs with these numbers, from the bottom up.

    Raises:
        ValueError: there is no such rung.
    """
    return pick(RUNGS, numbers)
