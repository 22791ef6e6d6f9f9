"""The services that are compared: what to install, how to start each, what it speaks, and its layouts.

A layout is a choice of processes and threads. The first of each list is used; with `--tune` all are tried and the one
with the most images a second is kept. Those for the CPU are for few cores: one process on all of them, or several with
one thread each.
"""

import os
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.peers.setup import Setup
from bench.peers.wires import Wire
from pipeline.options import CPU_BATCH_SIZE

Layout = Mapping[str, int]
# For the engine of this project, and the callers.
_OTHER_CPUS = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """One service.

    Attributes:
        package: whose version is reported; empty for this project.
        requirements: for pip.
        wire: what it speaks; the port is filled in.
        command: what comes after `python`.
        layouts: by the number of CPUs and whether there is a GPU, most promising first.
        environment: variables that its documentation recommends.
        about: what else was chosen, in words.
    """

    name: str
    package: str
    requirements: Sequence[str]
    wire: Wire
    command: Callable[[Setup], list[str]]
    layouts: Callable[[int, bool], Sequence[Layout]]
    environment: Mapping[str, str] = field(default_factory=dict)
    about: str = ""


def _module(name: str) -> Callable[[Setup], list[str]]:
    return lambda setup: ["-m", f"bench.peers.serve.{name}"]


def _warmlane(setup: Setup) -> list[str]:
    command = ["-m", "server", "--host", "127.0.0.1", "--port", str(setup.port), "--model", setup.model]
    settings = dict(setup.layout)
    command += ["--weights", setup.weights, "--batch-size", str(settings.pop("batch_size", setup.batch_size))]
    if setup.own_ports:
        command += ["--frontend-port", str(setup.port + 1)]
    command += ["--devices", ",".join([setup.device] * settings.pop("engines", 1))]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    return command


def _warmlane_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    if on_gpu:
        return [{"frontends": max(1, cpus // 2), "decode_threads": 1}]
    # The first is what it does by itself.
    return [{"batch_size": CPU_BATCH_SIZE}, {}, {"frontends": 1, "engines": cpus, "threads": 1, "decode_threads": 1}]


def _warmlane_on_cpu(setup: Setup) -> list[str]:
    return [*_warmlane(setup), "--decode", "cpu"]


def _on_cpu_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    return [{"frontends": max(1, cpus - _OTHER_CPUS), "decode_threads": 1}]


def _mosec(setup: Setup) -> list[str]:
    return [
        "-m",
        "bench.peers.serve.with_mosec",
        "--address",
        "127.0.0.1",
        "--port",
        str(setup.port),
        "--timeout",
        "60000",
    ]


def _mosec_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    if on_gpu:
        return [
            {"decode_processes": max(1, cpus - 4), "workers": 2, "torch_threads": 1},
            {"decode_processes": 0, "workers": max(2, cpus // 2), "torch_threads": 1},
        ]
    return [
        {"decode_processes": 0, "workers": cpus, "torch_threads": 1},
        {"decode_processes": 1, "workers": 1, "torch_threads": cpus},
    ]


def _worker_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    if on_gpu:
        return [{"workers": workers, "torch_threads": 1} for workers in (max(2, cpus // 2), max(1, cpus - 4))]
    return [{"workers": cpus, "torch_threads": 1}, {"workers": 1, "torch_threads": cpus}]


def _litserve_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    servers = 4 if on_gpu else 1
    first, *others = [{**layout, "api_servers": servers, "fast_queue": 1} for layout in _worker_layouts(cpus, on_gpu)]
    return [first, *others, {**first, "fast_queue": 0}]


def _bentoml(setup: Setup) -> list[str]:
    return [
        "-m",
        "bentoml",
        "serve",
        "bench.peers.serve.with_bentoml:Classify",
        "--host",
        "127.0.0.1",
        "--port",
        str(setup.port),
    ]


def _pytriton_layouts(cpus: int, on_gpu: bool) -> list[Layout]:
    if on_gpu:
        return [{"instances": 1, "torch_threads": 1, "decode_threads": 8}]
    return [
        {"instances": cpus, "torch_threads": 1, "decode_threads": 1},
        {"instances": 1, "torch_threads": cpus, "decode_threads": cpus},
    ]


def _library_path() -> str:
    """Where PyTriton finds the library of the Python that runs it: another one's would not fit the modules."""
    folders = (sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH"))
    return os.pathsep.join(filter(None, folders))


OURS = Peer(
    "warmlane", "", (), Wire("warmlane"), _warmlane, _warmlane_layouts, about="gRPC, unary calls encoded beforehand"
)

# What the others do on a GPU: where JPEGs are decoded is then not what makes the difference.
OURS_ON_CPU = replace(
    OURS, name="warmlane-CPU", command=_warmlane_on_cpu, layouts=_on_cpu_layouts, about=f"{OURS.about}; --decode cpu"
)

ALL = (
    OURS,
    Peer(
        "LitServe",
        "litserve",
        ("litserve",),
        Wire("http", "/predict"),
        _module("with_litserve"),
        _litserve_layouts,
        about="HTTP, the JPEG as the body",
    ),
    Peer(
        "mosec",
        "mosec",
        ("mosec",),
        Wire("http", "/inference"),
        _mosec,
        _mosec_layouts,
        about="HTTP, the JPEG as the body",
    ),
    Peer(
        "Ray Serve",
        "ray",
        ("ray[serve]",),
        Wire("http", "/"),
        _module("with_ray"),
        _worker_layouts,
        {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        about="HTTP, the JPEG as the body; HAProxy in front, as its documentation recommends for high throughput",
    ),
    Peer(
        "BentoML",
        "bentoml",
        ("bentoml",),
        Wire("multipart", "/classify"),
        _bentoml,
        _worker_layouts,
        {"BENTOML_DO_NOT_TRACK": "true"},
        about="HTTP, the JPEG as a form's file; it finds its batches' waiting time by itself",
    ),
    Peer(
        "PyTriton",
        "nvidia-pytriton",
        ("nvidia-pytriton",),
        Wire("kserve", "classifier"),
        _module("with_pytriton"),
        _pytriton_layouts,
        {"LD_LIBRARY_PATH": _library_path()},
        about="gRPC, the JPEG as raw bytes; Triton's batcher does not wait, as recommended",
    ),
)


def find(names: Sequence[str]) -> list[Peer]:
    """Peers by their names, in whatever case, without spaces.

    Raises:
        ValueError: there is none of that name.
    """
    known = {key(peer): peer for peer in (*ALL, OURS_ON_CPU)}
    if unknown := [name for name in names if name.lower() not in known]:
        raise ValueError(f"unknown peer {unknown[0]!r}: one of {', '.join(known)}")
    return [known[name.lower()] for name in names]


def key(peer: Peer) -> str:
    """A peer's name as a word for folders and the command line."""
    return peer.name.lower().replace(" ", "-")
