"""How a pipeline runs its model: numbers and names only, so that the command line can be read without torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pipeline.preprocess import Preprocess

Activation = Literal["softmax", "sigmoid"]

DEFAULT_MODEL = "efficientnet-lite0"
# "tf32" is float32 whose products are rounded to 10 bits of mantissa in the matrix units.
DTYPE_NAMES = ("fp32", "tf32", "fp16", "bf16")
# Holds the shorter side's window, 0.875 of it, of a photograph of 600 pixels; larger windows are resized on the CPU.
CUDA_CANVAS = 544
# Most images in a forward. On a CPU, larger batches gain nothing, and lose where their tensors leave the cache
# (EfficientNet-Lite0, 2 cores: 99 img/s in twos, 88 in eights; bench/LOG.md, 2026-12-04).
CUDA_BATCH_SIZE = 8
CPU_BATCH_SIZE = 2
CUDA_LANES = 3
# A caller who is alone need not wait for seven rows of padding: the engine sees a forward of 0.64 to 0.68 ms instead of
# 0.87 to 0.90 (ResNet-50, H200; bench/LOG.md, 2026-12-01).
GRAPH_SIZES = (1,)
# The most predictions that a caller may ask for.
MAX_TOP_K = 100


def padded_rows(images: float, batch_size: int, graph_sizes: Sequence[int]) -> int:
    """Rows that a GPU computes for a batch of so many images; of a mean, at most."""
    return min((size for size in graph_sizes if images <= size < batch_size), default=batch_size)


class _Preprocessed(Protocol):
    @property
    def preprocess(self) -> Preprocess: ...


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline runs its model.

    Attributes:
        batch_size: most images in a forward. On a GPU smaller batches are padded to it, or to one of `graph_sizes`.
        graph_sizes: smaller batch sizes that a GPU's lanes have a graph for.
        slots: most images in flight.
        threads: of one forward, on a CPU.
        decode_threads: images decoded at a time.
        device: "cpu", or "cuda:0".
        dtype: one of `DTYPE_NAMES`.
        lanes: batches that run at the same time.
        canvas: side of a slot's canvas in pixels; 0 for `CUDA_CANVAS` on a GPU and the model's input size on a CPU.
        max_wait_ms: how long a batch may wait to fill, in milliseconds.
        compile: False serves eager.
        compile_cache: folder of compiled models; None keeps none.
        null_engine: nothing is computed and every answer is the same, to measure what is around the model.
        decode: where JPEG files are decoded: "cpu", "gpu" or "auto", which is a GPU's decoder where there is one.
        skip_decode: images are not looked at, and slots keep what lies in them, to measure what is around the decoder.
    """

    batch_size: int
    slots: int
    threads: int
    decode_threads: int
    device: str = "cpu"
    dtype: str = "fp32"
    lanes: int = 1
    graph_sizes: tuple[int, ...] = GRAPH_SIZES
    canvas: int = 0
    max_wait_ms: float = 0.0
    compile: bool = True
    compile_cache: Path | None = None
    decode: str = "auto"
    null_engine: bool = False
    skip_decode: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether lanes are CUDA streams."""
        return self.device.startswith("cuda")

    def canvas_for(self, model: _Preprocessed) -> int:
        """Side of a slot's canvas in pixels, with the default resolved.

        Resizing inside the graph pays on a GPU only: on 2 CPU cores the matrix products take 27 ms a batch of 8, and
        the same resize 3 ms in the decode threads (bench/LOG.md, 2026-11-29).
        """
        default = CUDA_CANVAS if self.on_gpu else 0
        return max(self.canvas or default, *model.preprocess.crop)
