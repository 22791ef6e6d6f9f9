"""Puts a model on its lanes: picks the arithmetic, compiles, captures, warms up."""

import logging
import platform
import threading
from dataclasses import replace
from importlib import metadata

import torch

from pipeline.check import compare
from pipeline.compiler import build_program
from pipeline.cuda_lane import CudaLane
from pipeline.engine import Warm
from pipeline.gpu_open import open_gpu_decode
from pipeline.graph import Graph, Program, example_inputs
from pipeline.info import ModelInfo
from pipeline.lane import CpuLane
from pipeline.malloc import keep_freed_memory
from pipeline.model import Model, ModelError
from pipeline.null_lane import NullLane
from pipeline.options import DTYPE_NAMES, MAX_TOP_K, Options

log = logging.getLogger(__name__)

_VERSIONS = ("warmlane", "torch", "torchvision", "grpcio", "pillow", "simplejpeg")
_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Of forwards that take tens of milliseconds, on cores that have better to do than to look whether they are done.
_CPU_POLL_S = 500e-6
DTYPES: dict[str, torch.dtype] = {name: _DTYPES[name] for name in DTYPE_NAMES}


def device_name(device: str) -> str:
    """A device for people, as its maker calls it."""
    return "cpu" if device == "cpu" else torch.cuda.get_device_name(device)


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
        others = f", or cuda:N with N below {gpus}" if gpus else "; no GPU is found"
        raise ModelError(f"--device {device}: there is no such device; it can be auto, cpu{others}")
    return f"cuda:{index or 0}"


def resolve_dtype(dtype: str, device: str) -> str:
    """The key of `DTYPES` that a setting means on a device."""
    if dtype == "auto":
        return "fp32" if device == "cpu" else "fp16"
    return dtype


def open_device(options: Options) -> None:
    """Begin to open the GPU, which takes seconds, on a thread beside the one that loads the model."""
    if options.on_gpu and not options.null_engine:
        device, dtype = torch.device(options.device), DTYPES[options.dtype]
        threading.Thread(target=_open, args=(device, dtype), name="open-device", daemon=True).start()


def _open(device: torch.device, dtype: torch.dtype) -> None:
    """Make the context, and have the libraries loaded that any model needs."""
    try:
        images = torch.zeros((1, 64, 8, 8), dtype=dtype, device=device).contiguous(memory_format=torch.channels_last)
        torch.conv2d(images, torch.zeros((64, 64, 3, 3), dtype=dtype, device=device))
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        # Told by the engine's thread, which is about to meet the same.
        log.debug("the device could not be opened early: %s", error)


def build_lanes(model: Model, options: Options) -> Warm:
    """Lanes that have been compiled, captured and run once at every size they will see.

    To be called on the thread that will run them.
    """
    if options.decode == "gpu" and (options.null_engine or not options.on_gpu):
        log.warning("JPEGs are decoded on the CPU: no GPU is at work")
    if options.null_engine:
        count = min(MAX_TOP_K, len(model.labels))
        return Warm([NullLane(options.batch_size, count)], "nothing is computed: --null-engine")
    _set_arithmetic(options)
    device = torch.device(options.device)
    if options.on_gpu:
        # For whatever asks for no device by name: an engine of the second GPU has no business on the first.
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    canvas = options.canvas_for(model)
    graph = Graph(model, canvas, DTYPES[options.dtype]).to(device)
    program = compile_graph(graph, model, options)
    with torch.inference_mode():
        put = _cuda_lanes if options.on_gpu else _cpu_lanes
        warm = put(program, options, canvas, device)
        if program.run is not graph:
            warm = replace(warm, cost=_compared(graph, warm, options, canvas, device))
    return _with_gpu_decode(warm, options, canvas, device) if options.on_gpu else warm


def _with_gpu_decode(warm: Warm, options: Options, canvas: int, device: torch.device) -> Warm:
    """After all captures, which the decoder's allocations could spoil."""
    if options.decode == "cpu" or options.skip_decode:
        return warm
    in_lanes = options.lanes * options.batch_size
    found = open_gpu_decode(device, canvas, in_lanes, is_wanted=options.decode == "gpu")
    return replace(warm, gpu_decode=found, execution=f"{warm.execution}; JPEGs by {found.name}") if found else warm


def compile_graph(graph: Graph, model: Model, options: Options) -> Program:
    """The graph of a model as it is served: compiled, or eager and why. See `compiler.build_program`."""
    if not options.compile:
        return Program(graph, "eager: --no-compile")
    key = f"{model.version}-{model.preprocess}-{model.activation}-{options.dtype}"
    device, canvas = torch.device(options.device), options.canvas_for(model)
    return build_program(graph, key, options.batch_size, canvas, device, options.compile_cache, options.lanes)


def _compared(graph: Graph, warm: Warm, options: Options, canvas: int, device: torch.device) -> str:
    inputs = example_inputs(options.batch_size, canvas, device)
    line = compare(lambda: graph(*inputs), warm.lanes[0].run_example, device)
    log.info(line)
    return line


def _cpu_lanes(program: Program, options: Options, canvas: int, device: torch.device) -> Warm:
    for size in range(1, options.batch_size + 1):
        program.run(*example_inputs(size, canvas, device))
    lanes = [CpuLane(program, options.batch_size, canvas, options.threads) for _ in range(options.lanes)]
    for lane in lanes:
        lane.run_example()
    execution = f"{program.execution}, {len(lanes)} lanes of {options.threads} threads"
    return Warm(lanes, execution, shares=True, poll_s=_CPU_POLL_S, full_poll_s=_CPU_POLL_S)


def _cuda_lanes(program: Program, options: Options, canvas: int, device: torch.device) -> Warm:
    lanes = [CudaLane(program, options.batch_size, canvas, device, options.graph_sizes) for _ in range(options.lanes)]
    error, sizes = lanes[0].capture_error, " and ".join(map(str, lanes[0].sizes))
    graphs = f"no CUDA graph: {error}" if error else f"CUDA graphs of {sizes} on {len(lanes)} lanes"
    return Warm(lanes, f"{program.execution}, {graphs}")


def _set_arithmetic(options: Options) -> None:
    torch.set_num_threads(options.threads)
    # Searching for the fastest algorithm costs seconds at every new shape and gains nothing once shapes are fixed.
    torch.backends.cudnn.benchmark = False
    tf32 = options.dtype != "fp32"
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32


def describe(model: Model, options: Options) -> ModelInfo:
    """What is known before the model has been compiled."""
    return ModelInfo(
        name=model.name,
        version=model.version,
        labels=model.labels,
        preprocess=model.preprocess,
        activation=model.activation,
        device=device_name(options.device),
        dtype=options.dtype,
        batch_size=options.batch_size,
        lanes=options.lanes,
        canvas=options.canvas_for(model),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    """A package that runs from its source tree has none."""
    found = {"python": platform.python_version(), "cuda": torch.version.cuda or ""}
    for name in _VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
