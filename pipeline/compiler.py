"""Compiles a graph, each way tried in turn; what cannot be compiled is served eager, saying why.

On a CPU, AOTInductor (torch.compile's ahead-of-time form) first: packages on disk, which a later start loads in 0.3 s
instead of 20 (bench/LOG.md, 2026-11-29), and nothing can recompile once they run. Up to `_MOST_EXACT` images a batch,
each size has a package of its own: where inductor knows the size, it orders a convolution's weights beforehand as the
kernel for that size wants them (`freezing`). Larger batches share one package for any size up to the limit. On a GPU
`torch.compile` goes first: its cache makes later starts short there, and packages could not be loaded by every torch
that we serve on.
"""

import atexit
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from pipeline.aoti import CpuPackage, CpuPackages
from pipeline.graph import Forward, Graph, Program, example_inputs

log = logging.getLogger(__name__)

Inputs = tuple[Tensor, Tensor]

# Batch sizes that get a package each: one takes a quarter of a minute to compile, and memory for its own weights.
_MOST_EXACT = 2

# The modules whose code ends up in the compiled graph.
_GRAPH_MODULES = ("canvas", "compiler", "graph", "postprocess", "transforms")

_PROBE_TIMEOUT_S = 120.0
_PROBE = "import sys; from pathlib import Path; from pipeline.aoti import CpuPackage; CpuPackage(Path(sys.argv[1]))"


class CompilerMissing(RuntimeError):
    """Nothing on this machine can compile for a CPU."""


def build_program(
    graph: Graph, key: str, batch_size: int, canvas: int, device: torch.device, cache: Path | None, lanes: int = 1
) -> Program:
    """Compile a graph, or load what an earlier start has compiled, or fall back to eager and say why.

    Args:
        key: what identifies the model and its settings; the machine and the libraries are added here.
        batch_size: largest batch; on a CPU all smaller ones work too.
        cache: folder of compiled models; None keeps nothing.
        lanes: threads that run it at the same time, on a CPU.
    """
    inputs = example_inputs(batch_size, canvas, device)
    folder = _private_folder(cache)
    ways = [_just_in_time] if device.type == "cuda" else [_ahead_of_time, _just_in_time]
    reason = ""
    for way in ways:
        started = time.perf_counter()
        try:
            run = way(graph, f"{key}-{batch_size}-{canvas}", inputs, folder, lanes)
        except CompilerMissing as error:
            reason = str(error)
            break
        except Exception as error:
            # Export and inductor raise whatever the user's model provokes; such a model still serves.
            reason = f"could not be compiled: {_first_line(error)}"
            log.warning(
                "not compiled %s: %s",
                way.__name__[1:].replace("_", " "),
                reason,
                exc_info=log.isEnabledFor(logging.DEBUG),
            )
            continue
        seconds = time.perf_counter() - started
        log.info("compiled, or loaded from %s, in %.1f s", folder, seconds)
        return Program(run, "compiled", seconds)
    log.warning("serving eager, several times slower: %s", reason)
    return Program(graph, f"eager: {reason}")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _require_compiler(device: torch.device) -> None:
    """Say what to install, where inductor would find no C++ compiler for a CPU's kernels.

    Raises:
        CompilerMissing: there is none.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which((shlex.split(compiler) or [""])[0]):
        raise CompilerMissing(f"no C++ compiler ({compiler} not found): install g++, or set CXX")


def _private_folder(cache: Path | None) -> Path:
    """A folder that only this user can write to: what lies there is machine code that the server runs."""
    refusal = _cache_refusal(cache) if cache is not None else ""
    if refusal:
        log.warning("not using the compile cache %s: %s (--compile-cache)", cache, refusal)
    folder = cache if cache is not None and not refusal else _temporary_folder()
    scratch = _writable(folder)
    if scratch != folder:
        log.info("the compile cache %s can only be read: what it lacks is compiled at each start", folder)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor"))
    return folder


def _cache_refusal(cache: Path) -> str:
    """Why a folder cannot be the cache, or nothing; it is made where it is not there."""
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        return f"it cannot be made ({error.strerror})"
    about = cache.stat()
    if about.st_uid != os.getuid() or about.st_mode & 0o022:
        return "others can write to it (chmod go-w)"
    return ""


def _writable(folder: Path) -> Path:
    """The folder, or a temporary one where it may only be read, as a cache that comes with a container's image."""
    return folder if os.access(folder, os.W_OK) else _temporary_folder()


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="warmlane-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _just_in_time(graph: Graph, key: str, inputs: Inputs, folder: Path, lanes: int) -> Forward:
    """`torch.compile`, with inductor's own cache."""
    _require_compiler(inputs[0].device)
    log.info("compiling the model for %s; later starts find the kernels in the cache", inputs[0].device.type)
    run: Forward = torch.compile(graph, dynamic=inputs[0].device.type == "cpu")
    with torch.inference_mode():
        # Tensors of inference mode, as the lanes' are: for others it would compile once more.
        run(*(tensor.clone() for tensor in inputs))
    return run


def _ahead_of_time(graph: Graph, key: str, inputs: Inputs, folder: Path, lanes: int) -> Forward:
    """Packages from the cache, or new ones.

    Raises:
        RuntimeError: this torch cannot load its own packages.
    """
    most = inputs[0].shape[0]
    if most > _MOST_EXACT:
        return _package(graph, key, inputs, folder, lanes, exact=False)
    canvas, geometry = inputs
    sizes = range(1, most + 1)
    return CpuPackages(
        {
            size: _package(graph, f"{key}-of-{size}", (canvas[:size], geometry[:size]), folder, lanes, exact=True)
            for size in sizes
        }
    )


def _package(graph: Graph, key: str, inputs: Inputs, folder: Path, lanes: int, *, exact: bool) -> CpuPackage:
    """One package, for the inputs' batch size or, if not `exact`, for any up to it."""
    package = folder / f"{_cache_key(key, inputs[0].device)}.pt2"
    _raise_if_unusable(package)
    was_there = package.exists()
    if was_there:
        try:
            return CpuPackage(package, lanes)
        except Exception as error:
            log.warning("compiling anew: the package in the cache cannot be loaded: %s", _first_line(error))
    _require_compiler(inputs[0].device)
    package = _writable(folder) / package.name
    # Of several that start at once, one compiles.
    with _alone_in(package.parent):
        _raise_if_unusable(package)
        if was_there or not package.exists():
            up_to = "" if exact else "up to "
            log.info(
                "compiling for batches of %s%d, a quarter of a minute, into %s", up_to, len(inputs[0]), package.parent
            )
            _compile_package(graph, inputs, package, exact=exact)
        if not _loads_in_a_child(package):
            package.with_suffix(".unusable").touch()
            raise RuntimeError(f"torch {torch.__version__} cannot load its compiled packages")
    return CpuPackage(package, lanes)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process is in here with this folder: a lock on the folder itself leaves no file behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems that know no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _raise_if_unusable(package: Path) -> None:
    if package.with_suffix(".unusable").exists():
        raise RuntimeError(f"an earlier start found that torch {torch.__version__} cannot load its compiled packages")


def _loads_in_a_child(package: Path) -> bool:
    """Whether a package can be loaded. Seen with torch 2.11: loading one ends the process with a segmentation fault."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _PROBE, str(package)]
    probe = subprocess.run(command, env=environment, capture_output=True, timeout=_PROBE_TIMEOUT_S)
    return probe.returncode == 0


def _compile_package(graph: Graph, inputs: Inputs, package: Path, *, exact: bool) -> None:
    batch = None if exact else torch.export.Dim("batch", min=1, max=inputs[0].shape[0])
    shapes = None if batch is None else ({0: batch}, {0: batch})
    # With gradients on, inductor ignores `freezing` without a word.
    with (
        torch.no_grad(),
        torch._inductor.config.patch(freezing=True),
        tempfile.TemporaryDirectory(dir=package.parent) as scratch,
    ):
        exported = torch.export.export(graph, inputs, dynamic_shapes=shapes)
        fresh = torch._inductor.aoti_compile_and_package(exported, package_path=f"{scratch}/model.pt2")
        Path(fresh).replace(package)  # atomic, so that two servers may start at once


def _cache_key(key: str, device: torch.device) -> str:
    """Everything that makes a compiled package unfit for another start."""
    own_code = b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in _GRAPH_MODULES)
    parts = (
        key,
        torch.backends.cpu.get_cpu_capability(),
        torch.__version__,
        str(torch.get_num_threads()),
        hashlib.sha256(own_code).hexdigest(),
    )
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]
