"""Puts a model on its lanes: picks the arithmetic, compiles, captures, warms up."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pipeline.check import compare
from pipeline.compiler import build_program
from pipeline.cuda_lane import CudaLane
from pipeline.engine import Warm
from pipeline.graph import Graph, Program, example_inputs
from pipeline.lane import CpuLane
from pipeline.model import Model, ModelError

log = logging.getLogger(__name__)

# "tf32" is float32 whose products are rounded to 10 bits of mantissa in the matrix units.
DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# Holds the shorter side's window, 0.875 of it, of a photograph of 600 pixels; larger windows are resized on the CPU.
CUDA_CANVAS = 544


@dataclass(frozen=True, slots=True)
class Options:
    """How a pipeline runs its model.

    Attributes:
        batch_size: most images in a forward; on a GPU, of every forward.
        slots: most images in flight.
        threads: of the forward, on a CPU.
        decode_threads: images decoded at a time.
        device: "cpu", or "cuda:0".
        dtype: a key of `DTYPES`.
        lanes: batches that run at the same time on a GPU.
        canvas: side of a slot's canvas in pixels; 0 for `CUDA_CANVAS` on a GPU and the model's input size on a CPU.
        max_wait_ms: how long a batch may wait to fill, in milliseconds.
        compile: False serves eager.
        compile_cache: folder of compiled models; None keeps none.
    """

    batch_size: int
    slots: int
    threads: int
    decode_threads: int
    device: str = "cpu"
    dtype: str = "fp32"
    lanes: int = 1
    canvas: int = 0
    max_wait_ms: float = 0.0
    compile: bool = True
    compile_cache: Path | None = None

    @property
    def device_name(self) -> str:
        """Where the model runs, for people."""
        return torch.cuda.get_device_name(self.device) if self.on_gpu else "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether lanes are CUDA streams."""
        return self.device.startswith("cuda")

    def canvas_for(self, model: Model) -> int:
        """Side of a slot's canvas in pixels, with the default resolved.

        Resizing inside the graph pays on a GPU only: on 2 CPU cores the matrix products take 27 ms a batch of 8, and
        the same resize 3 ms in the decode threads (bench/LOG.md, 2026-11-29).
        """
        default = CUDA_CANVAS if self.on_gpu else 0
        return max(self.canvas or default, *model.preprocess.crop)


def resolve_device(device: str) -> str:
    """The device that a setting means: "auto" is the first GPU, or the CPU where there is none.

    Raises:
        ModelError: there is no such device.
    """
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    name, _, index = device.partition(":")
    gpus = torch.cuda.device_count()
    if name != "cuda" or not (index or "0").isdigit() or int(index or 0) >= gpus:
        raise ModelError(
            f"--device {device}: there is no such device; it can be auto, cpu, or cuda:N with N below {gpus}"
        )
    return f"cuda:{index or 0}"


def resolve_dtype(dtype: str, device: str) -> str:
    """The key of `DTYPES` that a setting means on a device."""
    if dtype == "auto":
        return "fp32" if device == "cpu" else "fp16"
    return dtype


def build_lanes(model: Model, options: Options) -> Warm:
    """Lanes that have been compiled, captured and run once at every size they will see.

    To be called on the thread that will run them.
    """
    _set_arithmetic(options)
    device = torch.device(options.device)
    canvas = options.canvas_for(model)
    graph = Graph(model, canvas, DTYPES[options.dtype]).to(device)
    program = compile_graph(graph, model, options)
    with torch.inference_mode():
        put = _cuda_lanes if options.on_gpu else _cpu_lane
        warm = put(program, options, canvas, device)
        if program.run is graph:
            return warm
        return replace(warm, cost=_compared(graph, warm, options, canvas, device))


def compile_graph(graph: Graph, model: Model, options: Options) -> Program:
    """The graph of a model as it is served: compiled, or eager and why. See `compiler.build_program`."""
    if not options.compile:
        return Program(graph, "eager: --no-compile")
    key = f"{model.version}-{model.preprocess}-{model.activation}-{options.dtype}"
    device, canvas = torch.device(options.device), options.canvas_for(model)
    return build_program(graph, key, options.batch_size, canvas, device, options.compile_cache)


def _compared(graph: Graph, warm: Warm, options: Options, canvas: int, device: torch.device) -> str:
    inputs = example_inputs(options.batch_size, canvas, device)
    line = compare(lambda: graph(*inputs), warm.lanes[0].run_example, device)
    log.info(line)
    return line


def _cpu_lane(program: Program, options: Options, canvas: int, device: torch.device) -> Warm:
    for size in range(1, options.batch_size + 1):
        program.run(*example_inputs(size, canvas, device))
    return Warm([CpuLane(program, options.batch_size, canvas)], program.execution)


def _cuda_lanes(program: Program, options: Options, canvas: int, device: torch.device) -> Warm:
    lanes = [CudaLane(program, options.batch_size, canvas, device) for _ in range(options.lanes)]
    error = lanes[0].capture_error
    graphs = f"no CUDA graph: {error}" if error else f"{len(lanes)} CUDA graphs"
    return Warm(lanes, f"{program.execution}, {graphs}")


def _set_arithmetic(options: Options) -> None:
    torch.set_num_threads(options.threads)
    # Searching for the fastest algorithm costs seconds at every new shape and gains nothing once shapes are fixed.
    torch.backends.cudnn.benchmark = False
    tf32 = options.dtype != "fp32"
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
