"""The one function that a lane runs: canvases in, top-k out, and its ahead-of-time compilation.

Compiled with AOTInductor (torch.compile's ahead-of-time form) into a package on disk, from one export whose batch size
may be anything from 1 to the limit. Against `torch.compile` (bench/LOG.md, 2026-11-29): one compilation instead of two,
a later start loads it in 0.3 s instead of 30, and nothing can recompile once it runs.
"""

import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.fx.experimental import optimization

from pipeline.canvas import resizes_in_graph
from pipeline.model import Model
from pipeline.postprocess import top_scores
from pipeline.transforms import Transform

log = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Program:
    """What a lane runs, and how it came to be.

    Attributes:
        run: uint8 [B, 3, S, S] and float32 [B, 6] to float32 [B, K] scores and int32 [B, K] classes.
        execution: "compiled", or "eager" and why, in words for people.
        compile_s: seconds that compiling or loading took.
    """

    run: Forward
    execution: str
    compile_s: float = 0.0


class Graph(nn.Module):
    """Transform, forward and top-k of one model as one module."""

    def __init__(self, model: Model, canvas: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.transform = Transform(model.preprocess, resize=resizes_in_graph(canvas, model.preprocess), dtype=dtype)
        self.module = _fold_batch_norm(model.module).to(dtype).to(memory_format=torch.channels_last)
        self.activation = model.activation
        self.eval()

    def forward(self, canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        """See `Program.run`."""
        return top_scores(self.module(self.transform(canvas, geometry)), self.activation)


def _fold_batch_norm(module: nn.Module) -> nn.Module:
    """Convolutions that have taken their batch norm in; the module as it was where it cannot be traced for that."""
    try:
        return optimization.fuse(module)
    except Exception as error:
        # Tracing runs the user's own forward with proxies, which may raise anything; only a little speed is lost.
        log.info("batch norm not folded: %s", str(error).splitlines()[0])
        return module


def example_inputs(batch: int, canvas: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of grey canvases with an identity geometry, of the shapes and strides that lanes use."""
    pixels = torch.full((batch, canvas, canvas, 3), 127, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    geometry = torch.tensor([[1.0, 0.0, canvas] * 2] * batch, dtype=torch.float32, device=device)
    return pixels, geometry


def build_program(
    graph: Graph, key: str, batch_size: int, canvas: int, device: torch.device, cache: Path | None
) -> Program:
    """Compile a graph, or load what an earlier start has compiled, or fall back to eager and say why.

    Args:
        key: what identifies the model and its settings; the machine and the libraries are added here.
        batch_size: largest batch; all smaller ones work too.
        cache: folder of compiled packages; None keeps nothing.
    """
    started = time.perf_counter()
    missing = None if device.type == "cuda" else _missing_compiler()
    if missing:
        log.warning("serving eager: %s", missing)
        return Program(graph, f"eager: {missing}")
    inputs = example_inputs(batch_size, canvas, device)
    try:
        package, is_new = _cached_package(graph, f"{key}-{batch_size}-{canvas}", inputs, cache)
        run = torch._inductor.aoti_load_package(str(package))
    except Exception as error:
        # Export and inductor raise whatever the user's model provokes; such a model still serves.
        reason = str(error).strip().splitlines()[0][:200]
        log.warning(
            "serving eager: the model could not be compiled: %s", reason, exc_info=log.isEnabledFor(logging.DEBUG)
        )
        return Program(graph, f"eager: could not be compiled: {reason}")
    seconds = time.perf_counter() - started
    log.info("%s in %.1f s", "compiled" if is_new else "loaded the compiled model", seconds)
    return Program(run, "compiled", seconds)


def _missing_compiler() -> str | None:
    """What to install, where inductor would find no C++ compiler."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler):
        return None
    return f"no C++ compiler ({compiler} not found): install g++, or set CXX, for a forward several times faster"


def _cached_package(graph: Graph, key: str, inputs: tuple[Tensor, Tensor], cache: Path | None) -> tuple[Path, bool]:
    """The package's path, and whether it was compiled just now."""
    folder = cache or Path(tempfile.mkdtemp(prefix="warmlane-"))
    # A package holds machine code that the server runs: nobody else may put one there.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    package = folder / f"{_cache_key(key, inputs[0].device)}.pt2"
    if package.exists():
        return package, False
    log.info(
        "compiling the model for %s, about half a minute; later starts load it from %s", inputs[0].device.type, folder
    )
    exported = _export(graph, inputs)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        fresh = torch._inductor.aoti_compile_and_package(exported, package_path=f"{scratch}/model.pt2")
        Path(fresh).replace(package)  # atomic, so that two servers may start at once
    return package, True


def _export(graph: Graph, inputs: tuple[Tensor, Tensor]) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=inputs[0].shape[0])
    shapes = ({0: batch}, {0: batch})
    if inputs[0].device.type == "cuda":
        shapes = ({}, {})  # lanes on a GPU only ever see the full, padded batch
    with torch.no_grad():
        return torch.export.export(graph, inputs, dynamic_shapes=shapes)


def _cache_key(key: str, device: torch.device) -> str:
    """Everything that makes a compiled package unfit for another start."""
    where = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}-{torch.version.cuda}"
    own_code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    parts = (key, where, torch.__version__, str(torch.get_num_threads()), hashlib.sha256(own_code).hexdigest())
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]
