"""Small diseased loops on a real GPU, and the verdict on each."""

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

from bench.doctor.diagnose import diagnose
from bench.doctor.evidence import DirectFeed, Evidence, Experiment, Factor
from bench.doctor.experiments import run_experiments, sync_off
from bench.doctor.roofline import roofline
from bench.doctor.subject import Subject, ms_per_batch
from bench.doctor.verdict import Disease, Verdict
from bench.trace import TraceSummary, profile_batches

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Run = Callable[[], object]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def many_small_kernels() -> Subject:
    layers = [layer for _ in range(60) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return Subject(nn.Sequential(*layers).cuda().eval(), torch.rand(8, 64, device="cuda"))


def large_matmuls() -> Subject:
    layers = nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(4)))
    return Subject(layers.cuda().half().eval(), torch.rand(8192, 8192, device="cuda", dtype=torch.float16))


def captured(run: Run) -> Run:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def verdict_on(trace: TraceSummary, *experiments: Experiment, feed: DirectFeed | None = None) -> Verdict:
    verdict = diagnose(Evidence(trace=trace, experiments=experiments, feed=feed))
    print(f"\n{verdict}\n{trace}")
    return verdict


def test_eager_small_kernels_are_launch_bound_and_a_graph_helps() -> None:
    subject = many_small_kernels()
    experiments = tuple(run_experiments(subject, [Factor.GRAPH], seconds=0.5))
    trace = profile_batches(subject.run, batches=100)
    verdict = verdict_on(trace, *experiments)
    assert verdict.disease is Disease.LAUNCH
    assert trace.launches >= 60
    assert trace.short_kernels > 0.9
    assert verdict.gain is not None
    assert verdict.gain > 2


def test_a_graph_replay_is_one_launch_of_many_kernels() -> None:
    trace = profile_batches(captured(many_small_kernels().run), batches=100)
    assert trace.launches == pytest.approx(1, abs=0.1)
    assert trace.kernels >= 60


def test_reading_a_number_after_every_kernel_is_sync_bound() -> None:
    weights = torch.rand(1 << 20, device="cuda")

    def loop() -> None:
        for _ in range(20):
            weights.sum().item()

    verdict = verdict_on(profile_batches(loop, batches=100), sync_off(loop, seconds=0.5))
    assert verdict.disease is Disease.SYNC
    assert verdict.gain is not None
    assert verdict.gain > 1.2


def test_preparing_on_the_cpu_is_feeding_slowly() -> None:
    subject = Subject(large_matmuls().module, torch.rand(64, 8192, device="cuda", dtype=torch.float16))
    dice = np.random.default_rng(0)

    def loop() -> None:
        batch = torch.from_numpy(np.sort(dice.random((64, 8192), dtype=np.float32))).half()
        subject.module(batch.cuda())

    feed = DirectFeed(64, ms_per_batch(subject.run, 0.5))
    verdict = verdict_on(profile_batches(loop, batches=50), feed=feed)
    assert verdict.disease is Disease.FED_SLOWLY
    assert verdict.gain is not None
    assert verdict.gain > 2


def test_waiting_for_requests_is_little_asked() -> None:
    replay = captured(many_small_kernels().run)

    def loop() -> None:
        replay()
        time.sleep(0.01)

    assert verdict_on(profile_batches(loop, batches=50)).disease is Disease.LITTLE_ASKED


def test_new_shapes_under_cudnn_benchmark_are_shape_churn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    net = nn.Sequential(*(nn.Conv2d(32, 32, 3, padding=1) for _ in range(4))).cuda().eval()
    sides = itertools.count(32)

    def loop() -> None:
        net(torch.rand(4, 32, 64, next(sides), device="cuda"))

    trace = profile_batches(loop, batches=30, warmup=3)
    verdict = verdict_on(trace)
    assert verdict.disease is Disease.CHURN
    assert trace.batch_shapes == 30
    assert trace.searches > 0


def test_large_captured_matmuls_are_compute_bound_and_healthy() -> None:
    subject = large_matmuls()
    trace = profile_batches(captured(subject.run), batches=50)
    verdict = diagnose(Evidence(trace=trace, roofline=roofline(subject)))
    print(f"\n{verdict}\n{trace}")
    assert verdict.disease is Disease.COMPUTE


def test_one_row_through_large_weights_is_memory_bound() -> None:
    module = large_matmuls().module
    subject = Subject(module, torch.rand(1, 8192, device="cuda", dtype=torch.float16))
    trace = profile_batches(captured(subject.run), batches=100)
    verdict = diagnose(Evidence(trace=trace, roofline=roofline(subject)))
    print(f"\n{verdict}\n{trace}")
    assert verdict.disease is Disease.MEMORY


def test_nvml_sees_the_gpu_at_work() -> None:
    pytest.importorskip("pynvml")
    from bench.nvml import Sampler

    with Sampler() as sampler:
        ms_per_batch(large_matmuls().run, seconds=3.0)
    samples = sampler.samples()
    print(f"\n{samples}")
    assert samples.util_percent > 50
    assert 0 < samples.sm_clock_mhz <= samples.sm_clock_max_mhz
    assert 0 < samples.power_w <= samples.power_limit_w * 1.1
