"""What is served, in plain values that can be sent to another process."""

from dataclasses import dataclass, field

from pipeline.preprocess import Preprocess


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A served model, without its weights.

    Attributes:
        name, version, labels, preprocess, activation: see `model.Model`.
        device: where it runs, for people.
        dtype: what it computes in, one of `options.DTYPE_NAMES`.
        batch_size: most images in a forward.
        lanes: batches that run at the same time.
        canvas: side of a slot's canvas, in pixels.
        execution, cost: see `engine.Warm`; empty until warm.
        gpu_decode: what decodes JPEG files on the GPU; empty where the CPU does.
        versions: of the packages that answer.
    """

    name: str
    version: str
    labels: tuple[str, ...]
    preprocess: Preprocess
    activation: str
    device: str
    dtype: str
    batch_size: int
    lanes: int
    canvas: int
    execution: str = ""
    cost: str = ""
    gpu_decode: str = ""
    versions: dict[str, str] = field(default_factory=dict)
