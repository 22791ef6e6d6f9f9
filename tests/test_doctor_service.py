"""The doctor on running servers: healthy, starved and idle ones, each under real calls, without a GPU."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image

from bench.doctor.__main__ import main
from bench.doctor.diagnose import BUSY_ENOUGH
from bench.doctor.evidence import Factor
from bench.doctor.served import ask_model, copy_of
from bench.ports import free_port
from pipeline.options import CPU_BATCH_SIZE
from tests.serving import admin_stub, calling, process
from tests.slow_model import FLAGS, solid
from warmlane.v1 import admin_pb2 as pb

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="serves on the CPU"),
    pytest.mark.usefixtures("one_thread"),
]

TINY = ("--model", "tests.tiny_model:layers", "--resize", "36", "--crop", "32")


QUICK = ("--seconds", "0.5", "--batches", "10", "--profile-s", "5")


class Watched:
    """A server with both of its private ports."""

    def __init__(self, target: str, admin_port: int, metrics_port: int) -> None:
        self.target, self.admin_port, self.metrics_port = target, admin_port, metrics_port

    def examine(self, *args: str, metrics: bool = True) -> Result:
        ports = ["--admin-port", str(self.admin_port), *(["--metrics-port", str(self.metrics_port)] * metrics)]
        return CliRunner().invoke(main, ["--target", self.target, *ports, *QUICK, *args])

    def told(self, *args: str, metrics: bool = True) -> dict[str, Any]:
        result = self.examine(*args, "--json", metrics=metrics)
        assert result.exit_code == 0, result.output
        told: dict[str, Any] = json.loads(result.stdout)
        return told


def watched(*flags: str) -> Iterator[Watched]:
    admin_port, metrics_port = free_port(), free_port()
    ports = ("--admin-port", str(admin_port), "--metrics-port", str(metrics_port))
    with process(*ports, "--threads", "1", *flags) as server:
        yield Watched(server.target, admin_port, metrics_port)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Watched]:
    """A small model, and one decode thread."""
    yield from watched(*TINY, "--decode-threads", "1")


@pytest.fixture(scope="module")
def slow() -> Iterator[Watched]:
    """A forward that takes tenths of a second."""
    yield from watched(*FLAGS)


def slow_to_decode() -> bytes:
    """A PNG of noise, which takes a decode thread some hundredths of a second."""
    pixels = np.random.default_rng(3).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_a_service_whose_engine_has_no_rest_is_healthy(slow: Watched) -> None:
    with calling(slow.target, solid(2), callers=4):
        told = slow.told("--experiments", "", "--seconds", "2")
    assert told["verdict"]["disease"] == "compute-bound (healthy)"
    assert told["verdict"]["setting"].startswith("none")
    trace = told["evidence"]["trace"]
    assert trace["kernels"] == 0
    assert trace["kernel_ms"] > BUSY_ENOUGH * trace["wall_ms"]
    assert any("the engine (on a CPU) is busy" in line for line in told["verdict"]["evidence"])


def test_a_service_that_waits_for_its_decoder_is_fed_too_slowly(tiny: Watched) -> None:
    with calling(tiny.target, slow_to_decode(), callers=6):
        told = tiny.told("--experiments", "half-precision")
    assert told["verdict"]["disease"] == "fed too slowly by the CPU"
    assert "--decode-threads" in told["verdict"]["setting"]
    assert told["verdict"]["gain"] > 2  # fed from memory against served
    assert told["evidence"]["service"]["decode_wait_ms"] > told["evidence"]["service"]["decode_ms"]


def test_a_service_that_nobody_calls_is_not_sick(tiny: Watched) -> None:
    told = tiny.told("--experiments", "", "--goal", "throughput", "--profile-s", "1")
    assert told["verdict"]["disease"] == "idle because little is asked of it"
    assert told["evidence"]["trace"] is None
    assert any("no batch was served" in line for line in told["unseen"])


def test_a_service_with_one_slow_caller_is_not_sick(tiny: Watched) -> None:
    with calling(tiny.target, solid(90, side=32), callers=1):
        throughput = tiny.told("--experiments", "")
        latency = tiny.told("--experiments", "", "--goal", "latency")
        blind = tiny.told("--experiments", "", metrics=False)
    assert throughput["verdict"]["disease"] == "idle because little is asked of it"
    assert latency["verdict"]["disease"] == "healthy for a latency goal"
    assert blind["evidence"]["service"] is None
    assert any(line.startswith("metrics: no --metrics-port") for line in blind["unseen"])


def test_experiments_are_on_a_copy_of_the_served_model(tiny: Watched) -> None:
    served = ask_model(tiny.target)
    subject = copy_of(served)
    assert subject.batch.shape == (CPU_BATCH_SIZE, 3, 32, 32)
    assert served.has == frozenset()
    with calling(tiny.target, solid(90, side=32), callers=1):
        told = tiny.told("--experiments", "half-precision,cuda-graph")
    experiments = {each["factor"]: each for each in told["evidence"]["experiments"]}
    assert experiments[Factor.HALF]["after_ms"] > 0
    assert experiments[Factor.GRAPH]["note"] == "needs a GPU"
    assert told["evidence"]["roofline"]["flops"] > 0
    assert told["evidence"]["served"]["model"] == "tests.tiny_model:layers"
    assert ask_model(tiny.target) == served


def test_what_it_prints(tiny: Watched) -> None:
    with calling(tiny.target, solid(90, side=32), callers=1):
        result = tiny.examine("--experiments", "half-precision")
    assert result.exit_code == 0, result.output
    parts = ("the service's metrics", "direct feed", "profile, means of", "experiments", "roofline")
    assert [part for part in parts if part not in result.stdout] == []
    assert "verdict: idle because little is asked of it" in result.stdout
    assert "NVML: the service computes on a CPU" in result.stdout


def test_a_profile_kept_in_a_file_is_read_as_well(tiny: Watched, tmp_path: Path) -> None:
    with (
        calling(tiny.target, solid(90, side=32)),
        admin_stub(f"127.0.0.1:{tiny.admin_port}") as stub,
    ):
        trace = stub.Profile(pb.ProfileRequest(batches=10)).trace
    path = tmp_path / "profile.json.gz"
    path.write_bytes(trace)
    result = CliRunner().invoke(main, ["--trace", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["evidence"]["trace"]["batches"] >= 10


def test_without_an_admin_port_the_rest_is_still_seen(tiny: Watched) -> None:
    nowhere = Watched(tiny.target, free_port(), tiny.metrics_port).told("--experiments", "")
    public = Watched(tiny.target, int(tiny.target.rpartition(":")[2]), tiny.metrics_port).told("--experiments", "")
    for told, code in ((nowhere, "UNAVAILABLE"), (public, "UNIMPLEMENTED")):
        (line,) = (line for line in told["unseen"] if line.startswith("profile: "))
        assert code in line
        assert "start the server with --admin-port" in line
        assert told["verdict"]["disease"] == "idle because little is asked of it"
