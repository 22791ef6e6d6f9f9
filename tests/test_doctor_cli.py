"""Roofline, experiments, metrics and the command, as far as they go without a GPU."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from bench import metrics_reading, nvml
from bench.doctor import service
from bench.doctor.__main__ import main
from bench.doctor.evidence import Factor, Roofline
from bench.doctor.experiments import run_experiments, sync_off
from bench.doctor.roofline import count_bytes, count_flops
from bench.doctor.subject import Subject
from tests.fake_service import FakeClassifier, serving

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = "tests.test_doctor_cli:tiny"
QUICK = ["--input", "3,16,16", "--batch-size", "2", "--seconds", "0.02", "--experiments", "half-precision,cuda-graph"]
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what is missing where there is no GPU")


def tiny() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 5))


def not_a_module() -> int:
    return 3


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_flops_of_a_linear_and_a_convolution() -> None:
    assert count_flops(nn.Linear(16, 32), torch.rand(4, 16)) == 2 * 4 * 16 * 32
    # 2 x batch x outputs (4 x 14 x 14) x inputs of each (3 x 3 x 3)
    assert count_flops(nn.Conv2d(3, 4, 3), torch.rand(2, 3, 16, 16)) == 2 * 2 * 4 * 14 * 14 * 27


def test_bytes_are_weights_input_and_output() -> None:
    assert count_bytes(nn.Linear(16, 32), torch.rand(4, 16)) == 4 * (16 * 32 + 32 + 4 * 16 + 4 * 32)


def test_the_floor_is_the_larger_of_arithmetic_and_bytes() -> None:
    roofline = Roofline(flops=2e12, bytes_moved=4e9, copy_bytes_s=4e12, matmul_flops_s=1e15)
    assert (roofline.compute_ms, roofline.memory_ms, roofline.floor_ms) == (2.0, 1.0, 2.0)


def test_waits_are_answered_from_memory_and_the_flow_stays() -> None:
    weights = torch.tensor([1.0, 2.0])
    seen: list[float] = []

    def body() -> None:
        seen.extend(row.item() if row > 1.5 else float(row) for row in weights)

    experiment = sync_off(body, seconds=0.01, device_type="cpu")
    assert experiment.note == "4 waits a batch"
    assert experiment.gain is not None
    assert set(zip(seen[::2], seen[1::2], strict=True)) == {(1.0, 2.0)}


def test_a_loop_without_waits_has_nothing_to_switch_off() -> None:
    assert sync_off(lambda: torch.ones(2) * 2, seconds=0.01).note.startswith("nothing to switch off")


@needs_no_gpu
def test_experiments_work_on_a_copy_and_say_what_needs_a_gpu() -> None:
    subject = Subject(tiny(), torch.rand(2, 3, 16, 16))
    done = {each.factor: each for each in run_experiments(subject, set(Factor) - {Factor.COMPILE}, seconds=0.02)}
    assert done[Factor.HALF].gain is not None
    assert done[Factor.GRAPH].note == "needs a GPU"
    assert next(subject.module.parameters()).dtype is torch.float32


def test_a_model_that_fails_in_an_experiment_is_a_result() -> None:
    class Picky(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            if batch.dtype is not torch.float32:
                raise TypeError("float32 only")
            return batch

    (experiment,) = run_experiments(Subject(Picky(), torch.rand(2, 3)), [Factor.HALF], seconds=0.01)
    assert experiment.gain is None
    assert experiment.note == "failed: float32 only"


METRICS = """
warmlane_images_total{{status="OK"}} {ok}
warmlane_images_total{{status="INTERNAL"}} 3
warmlane_batch_fill_sum {fill}
warmlane_batch_fill_count {batches}
warmlane_stage_seconds_sum{{stage="decode"}} {decode}
warmlane_stage_seconds_count{{stage="decode"}} {ok}
warmlane_stage_seconds_sum{{stage="forward"}} {forward}
warmlane_stage_seconds_count{{stage="forward"}} {ok}
"""


def test_two_readings_of_the_metrics_make_a_load() -> None:
    before = metrics_reading.parse_metrics(METRICS.format(ok=100, fill=100, batches=20, decode=1.0, forward=2.0))
    after = metrics_reading.parse_metrics(METRICS.format(ok=300, fill=300, batches=60, decode=1.4, forward=2.6))
    load = service.between(before, after, seconds=2.0, batch_size=8, cpus=4)
    assert (load.img_s, load.batch_fill) == (100.0, 5.0)
    assert load.decode_ms == pytest.approx(2.0)
    assert load.forward_ms == pytest.approx(3.0)
    assert load.in_flight == pytest.approx(0.5)
    assert load.queue_ms == 0
    assert load.cpu_ceiling_img_s == pytest.approx(2000)


def test_a_service_that_does_nothing_has_no_load() -> None:
    load = service.between({}, {}, seconds=1.0, batch_size=8, cpus=4)
    assert (load.img_s, load.in_flight, load.batch_fill) == (0, 0, 0)


@pytest.fixture
def metrics_url() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.format(ok=1, fill=1, batches=1, decode=1, forward=1).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_metrics_are_read_over_http(metrics_url: str) -> None:
    assert service.watch(metrics_url, seconds=0.01, batch_size=8, cpus=4).img_s == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/metrics", "file:///etc/hostname", "metrics"])
def test_unreadable_metrics_are_one_line(url: str) -> None:
    with pytest.raises(metrics_reading.MetricsError, match="metrics: ") as caught:
        metrics_reading.read_metrics(url)
    assert "\n" not in str(caught.value)


def test_the_port_of_calls_is_not_taken_for_that_of_metrics() -> None:
    with serving(FakeClassifier()) as target, pytest.raises(metrics_reading.MetricsError, match="speaks no HTTP"):
        metrics_reading.read_metrics(f"http://{target}/metrics")


def test_a_missing_nvml_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(nvml.NvmlError, match="nvidia-ml-py is not installed"):
        nvml.Sampler()


@needs_no_gpu
def test_the_command_diagnoses_what_it_can_without_a_gpu() -> None:
    result = run("--factory", TINY, *QUICK, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["verdict"]["disease"] == "cannot be told from what could be seen"
    assert told["evidence"]["feed"]["ms_per_batch"] > 0
    assert told["evidence"]["roofline"]["flops"] == 2 * 2 * (4 * 14 * 14 * 27 + 4 * 14 * 14 * 5)
    assert [each["factor"] for each in told["evidence"]["experiments"]] == ["half precision", "CUDA graph"]
    assert any(line.startswith("profile: no GPU here") for line in told["unseen"])
    assert any(line.startswith("NVML: ") for line in told["unseen"])


@needs_no_gpu
def test_the_command_prints_layers_and_the_verdict() -> None:
    result = run("--factory", TINY, *QUICK)
    assert result.exit_code == 0, result.output
    places = [
        result.stdout.index(part) for part in ("direct feed", "experiments", "roofline", "not looked at", "verdict:")
    ]
    assert places == sorted(places)
    assert "most worth changing: " in result.stdout


def test_a_recorded_trace_is_diagnosed_without_a_gpu(tmp_path: Any) -> None:
    rows = [{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 40 * i, "dur": 5} for i in range(500)]
    rows += [{"ph": "X", "cat": "kernel", "name": "add", "ts": 40 * i + 6, "dur": 8} for i in range(500)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    result = run("--trace", str(path), "--trace-batches", "5", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["verdict"]["disease"] == "launch-bound"
    assert told["evidence"]["trace"]["launches"] == 100


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ([], "nothing to look at: give --factory, --model, --loop, --target or --trace"),
        (["--factory", "no.such:thing"], "no.such:thing: No module named 'no'"),
        (["--factory", "tests.test_doctor_cli:missing"], "has no attribute 'missing'"),
        (["--factory", "tests.test_doctor_cli:not_a_module"], "returned a int, not an nn.Module"),
        (["--factory", TINY, "--model", "resnet50"], "--factory or --model, not both"),
        (["--model", "resnet5000"], "unknown model 'resnet5000'"),
        (["--factory", TINY, "--input", "3,a"], "'3,a' is not a shape such as 3,224,224"),
        (["--factory", TINY, "--admin-port", "1"], "--admin-port is of a running service: give its --target too"),
        (["--factory", TINY, "--experiments", "magic"], "unknown 'magic'; there are half-precision, sync-off"),
    ],
)
def test_wrong_usage_is_one_clear_line(args: list[str], line: str) -> None:
    result = run(*args)
    assert result.exit_code != 0
    assert line in result.output
    assert "Traceback" not in result.output


@needs_no_gpu
def test_a_running_service_is_watched_by_its_metrics(metrics_url: str) -> None:
    with serving(FakeClassifier()) as target:
        result = run("--target", target, "--metrics-url", metrics_url, "--seconds", "0.05", "--json")
        blind = run("--target", target, "--seconds", "0.05", "--json")
    assert json.loads(result.stdout)["evidence"]["service"]["img_s"] == 0
    assert json.loads(result.stdout)["verdict"]["disease"] == "idle because little is asked of it"
    assert any(line.startswith("metrics: no --metrics-port") for line in json.loads(blind.stdout)["unseen"])
    assert json.loads(blind.stdout)["verdict"]["disease"] == "cannot be told from what could be seen"


def test_a_service_that_is_not_there_is_one_clear_line() -> None:
    result = run("--target", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "Error: --target 127.0.0.1:1: " in result.output
