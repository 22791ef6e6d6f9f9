"""Synthetic evidence of every disease, healthy services, and cases on the border."""

from dataclasses import replace

import pytest

from bench.doctor import advice
from bench.doctor.diagnose import BUSY_ENOUGH, diagnose
from bench.doctor.evidence import (
    DirectFeed,
    Evidence,
    Experiment,
    Factor,
    Roofline,
    Served,
    ServiceMetrics,
)
from bench.doctor.verdict import Disease
from bench.nvml import DeviceSamples
from bench.trace import TraceSummary

# The incident's initial rung: 82 ms a request, 10 of kernels, 58 of preparing, 2.6 of waits, 8.8 of gaps.
INCIDENT = TraceSummary(
    200,
    82.0,
    10.0,
    host_ms=58.0,
    sync_ms=2.6,
    launch_ms=8.8,
    copy_ms=2.6,
    kernels=236,
    launches=236,
    short_kernels=0.68,
)
LAUNCH_BOUND = TraceSummary(200, 10.1, 1.3, launch_ms=8.5, sync_ms=0.3, kernels=236, launches=236, short_kernels=0.68)
SYNC_BOUND = TraceSummary(200, 6.0, 2.0, sync_ms=3.4, launch_ms=0.6, kernels=90, launches=90, syncs=40)
CHURN = TraceSummary(
    200, 40.0, 2.0, churn_ms=33.0, launch_ms=5.0, kernels=400, launches=400, batch_shapes=60, searches=9
)
HEALTHY = TraceSummary(200, 0.60, 0.55, launch_ms=0.03, host_ms=0.02, kernels=60, launches=1, short_kernels=0.4)
WAITING = TraceSummary(200, 20.0, 0.6, host_ms=19.2, launch_ms=0.2, kernels=60, launches=1, host_cpu_ms=0.9)

COMPUTES = Roofline(flops=400e9, bytes_moved=60e6, copy_bytes_s=4.3e12, matmul_flops_s=790e12)
MOVES_BYTES = Roofline(flops=0.3e9, bytes_moved=1.4e9, copy_bytes_s=4.3e12, matmul_flops_s=790e12)

DEVICE = DeviceSamples("GPU", 10, 50.0, 20.0, 1900, 1980, 400, 700, 30.0)
# 16 CPUs decode 10,000 img/s; full batches would take 13,000: the CPUs are enough to keep the GPU busy.
SERVICE = ServiceMetrics(9_500, 60.0, 7.6, 8, decode_ms=1.6, queue_ms=0.9, forward_ms=0.615, cpus=16)

EXPERIMENTS = (
    Experiment(Factor.HALF, 10.0, 9.5),
    Experiment(Factor.SYNC_OFF, 10.0, 4.0),
    Experiment(Factor.FIXED_SHAPE, 40.0, 5.0),
    Experiment(Factor.COMPILE, 10.0, 6.0),
    Experiment(Factor.GRAPH, 10.0, 2.5),
    Experiment(Factor.COMPILE_GRAPH, 10.0, 1.25),
)

SICK = [
    (INCIDENT, Disease.FED_SLOWLY),
    (replace(INCIDENT, wall_ms=79.4, sync_ms=0.0), Disease.FED_SLOWLY),
    (replace(INCIDENT, wall_ms=55.4, sync_ms=0.0, host_ms=34.0), Disease.FED_SLOWLY),
    (LAUNCH_BOUND, Disease.LAUNCH),
    (SYNC_BOUND, Disease.SYNC),
    (CHURN, Disease.CHURN),
]


@pytest.mark.parametrize(("trace", "disease"), SICK)
@pytest.mark.parametrize("goal", ["throughput", "latency"])
def test_every_disease_of_a_trace_is_named(trace: TraceSummary, disease: Disease, goal: str) -> None:
    verdict = diagnose(Evidence(trace=trace), "latency" if goal == "latency" else "throughput")
    assert verdict.disease is disease
    assert verdict.evidence
    assert verdict.setting
    assert verdict.gain is None


def test_memory_bound_is_told_from_compute_bound_by_the_roofline() -> None:
    assert diagnose(Evidence(trace=HEALTHY, roofline=COMPUTES)).disease is Disease.COMPUTE
    verdict = diagnose(Evidence(trace=HEALTHY, roofline=MOVES_BYTES))
    assert verdict.disease is Disease.MEMORY
    assert any("raising utilisation would not help" in sentence for sentence in verdict.evidence)


def test_memory_bound_by_nvml_where_activations_are_what_moves() -> None:
    device = replace(DEVICE, memory_percent=85.0)
    far = replace(COMPUTES, flops=20e9)
    assert diagnose(Evidence(trace=HEALTHY, roofline=far, device=device)).disease is Disease.MEMORY
    assert diagnose(Evidence(trace=HEALTHY, roofline=COMPUTES, device=device)).disease is Disease.COMPUTE


def test_waiting_for_requests_is_no_disease() -> None:
    assert diagnose(Evidence(trace=WAITING)).disease is Disease.LITTLE_ASKED
    assert diagnose(Evidence(trace=WAITING), "latency").disease is Disease.LATENCY


def test_the_same_idleness_with_the_cpu_at_work_is_starvation() -> None:
    busy_host = replace(WAITING, host_cpu_ms=20.0)
    assert diagnose(Evidence(trace=busy_host)).disease is Disease.FED_SLOWLY
    assert diagnose(Evidence(trace=busy_host), "latency").disease is Disease.FED_SLOWLY


def test_a_latency_goal_does_not_excuse_slow_launching() -> None:
    eager = replace(WAITING, kernel_ms=0.6, host_ms=15.0, launch_ms=4.4, host_cpu_ms=5.0)
    assert diagnose(Evidence(trace=eager)).disease is Disease.LITTLE_ASKED
    assert diagnose(Evidence(trace=eager), "latency").disease is Disease.LAUNCH


@pytest.mark.parametrize("goal", ["throughput", "latency"])
def test_a_healthy_service_is_not_diagnosed_as_sick(goal: str) -> None:
    device = replace(DEVICE, util_percent=97.0)
    evidence = Evidence(device, SERVICE, DirectFeed(8, 0.615), HEALTHY, EXPERIMENTS[:1], COMPUTES)
    assert diagnose(evidence, "latency" if goal == "latency" else "throughput").disease is Disease.COMPUTE


def test_a_healthy_service_at_night_is_not_diagnosed_as_sick() -> None:
    night = ServiceMetrics(20, 0.1, 1.0, 8, decode_ms=1.6, queue_ms=0.1, forward_ms=0.6, cpus=16)
    device = replace(DEVICE, util_percent=2.0)
    for trace in (None, replace(WAITING, host_cpu_ms=None)):
        evidence = Evidence(device, night, trace=trace)
        assert diagnose(evidence).disease is Disease.LITTLE_ASKED
        assert diagnose(evidence, "latency").disease is Disease.LATENCY


def test_one_caller_of_a_healthy_service_asks_little() -> None:
    one = ServiceMetrics(400, 0.9, 1.0, 8, decode_ms=1.2, queue_ms=0.1, forward_ms=0.6, cpus=16)
    assert diagnose(Evidence(replace(DEVICE, util_percent=25.0), one)).disease is Disease.LITTLE_ASKED


def test_a_service_whose_cpus_cannot_keep_up_is_fed_slowly() -> None:
    starved = ServiceMetrics(250, 30.0, 2.0, 8, decode_ms=58.0, queue_ms=0.5, forward_ms=2.0, cpus=16)
    device = replace(DEVICE, util_percent=12.0, cpu_percent=85.0)
    waits = replace(WAITING, host_cpu_ms=0.9)  # the engine's own process is idle: others decode
    for trace in (None, waits):
        verdict = diagnose(Evidence(device, starved, DirectFeed(8, 0.615), trace))
        assert verdict.disease is Disease.FED_SLOWLY
        assert verdict.gain == pytest.approx(13_008 / 250, rel=0.01)


def test_a_service_that_queues_before_an_idle_gpu_needs_a_profile() -> None:
    queueing = replace(SERVICE, queue_ms=50.0, batch_fill=8.0)
    assert diagnose(Evidence(replace(DEVICE, util_percent=20.0), queueing)).disease is Disease.UNKNOWN
    launching = Evidence(replace(DEVICE, util_percent=20.0), queueing, trace=LAUNCH_BOUND)
    assert diagnose(launching).disease is Disease.LAUNCH


def test_without_metrics_a_saturated_cpu_is_told_by_nvml_alone() -> None:
    assert diagnose(Evidence(replace(DEVICE, util_percent=12.0, cpu_percent=85.0))).disease is Disease.FED_SLOWLY
    assert diagnose(Evidence(replace(DEVICE, util_percent=12.0, cpu_percent=40.0))).disease is Disease.UNKNOWN
    assert diagnose(Evidence(replace(DEVICE, util_percent=99.0))).disease is Disease.COMPUTE


def test_no_evidence_names_nothing() -> None:
    assert diagnose(Evidence()).disease is Disease.UNKNOWN


@pytest.mark.parametrize(
    ("busy", "disease"), [(BUSY_ENOUGH + 0.001, Disease.COMPUTE), (BUSY_ENOUGH - 0.001, Disease.LAUNCH)]
)
def test_on_the_border_of_busy_enough(busy: float, disease: Disease) -> None:
    trace = TraceSummary(200, 10.0, 10.0 * busy, launch_ms=10.0 * (1 - busy), kernels=100, launches=100)
    assert diagnose(Evidence(trace=trace)).disease is disease


@pytest.mark.parametrize(("busy", "disease"), [(0.51, Disease.LATENCY), (0.49, Disease.SYNC)])
def test_on_the_border_for_latency(busy: float, disease: Disease) -> None:
    trace = TraceSummary(200, 1.0, busy, sync_ms=1 - busy, kernels=60, launches=1)
    assert diagnose(Evidence(trace=trace), "latency").disease is disease


@pytest.mark.parametrize(("waiting_ms", "disease"), [(5.1, Disease.LITTLE_ASKED), (4.9, Disease.LAUNCH)])
def test_on_the_border_of_little_asked(waiting_ms: float, disease: Disease) -> None:
    trace = TraceSummary(
        200,
        10.0,
        1.0,
        host_ms=waiting_ms,
        launch_ms=9 - waiting_ms,
        kernels=50,
        launches=50,
        host_cpu_ms=10 - waiting_ms,
    )
    expected = Disease.LAUNCH if disease is Disease.LAUNCH else Disease.LITTLE_ASKED
    assert diagnose(Evidence(trace=trace)).disease is expected


def test_nearly_equal_losses_name_the_larger() -> None:
    trace = TraceSummary(200, 10.0, 1.0, sync_ms=4.6, launch_ms=4.4, kernels=50, launches=50)
    verdict = diagnose(Evidence(trace=trace))
    assert verdict.disease is Disease.SYNC
    assert any(str(Disease.LAUNCH) in line for line in verdict.secondary)


@pytest.mark.parametrize(
    ("trace", "setting", "gain"),
    [
        (LAUNCH_BOUND, 'torch.compile(mode="reduce-overhead")', 8.0),
        (SYNC_BOUND, ".item()", 2.5),
        (CHURN, "one batch shape", 8.0),
        (INCIDENT, "keep only the decode on the CPU", 8.2),
    ],
)
def test_the_setting_comes_with_its_measured_gain(trace: TraceSummary, setting: str, gain: float) -> None:
    verdict = diagnose(Evidence(trace=trace, feed=DirectFeed(8, 10.0), experiments=EXPERIMENTS))
    assert setting in verdict.setting
    assert verdict.gain == pytest.approx(gain)
    assert verdict.measured.startswith("measured: ")


def test_a_failed_experiment_recommends_nothing_measured() -> None:
    failed = Experiment(Factor.COMPILE_GRAPH, note="failed: no compiler")
    verdict = diagnose(Evidence(trace=LAUNCH_BOUND, experiments=(failed, EXPERIMENTS[4])))
    assert "CUDA graph" in verdict.setting
    assert verdict.gain == 4.0


def test_an_experiment_without_gain_says_so() -> None:
    flat = Experiment(Factor.SYNC_OFF, 10.0, 9.9)
    assert "no gain worth the change" in diagnose(Evidence(trace=SYNC_BOUND, experiments=(flat,))).measured


def test_a_healthy_model_is_left_alone_unless_something_helps() -> None:
    flat = Evidence(trace=HEALTHY, roofline=COMPUTES, experiments=(Experiment(Factor.HALF, 1.0, 0.99),))
    assert diagnose(flat).setting.startswith("none")
    helped = replace(flat, experiments=(Experiment(Factor.HALF, 1.0, 0.5),))
    assert diagnose(helped).gain == 2.0


def test_asides_tell_what_else_is_wrong() -> None:
    trace = replace(HEALTHY, blocking_copies=2, batch_shapes=3)
    device = replace(DEVICE, power_w=200.0, cpu_percent=90.0)
    text = "\n".join(diagnose(Evidence(device, trace=trace, roofline=replace(COMPUTES, flops=66e9))).secondary)
    for part in (
        "2 copies a batch hold the host",
        "3 batch shapes",
        "times the floor",
        "29% of its power",
        "90 % busy",
    ):
        assert part in text


# A service on a CPU: no kernels, forwards in their place, and whatever else the engine's thread does is idleness.
CPU_BUSY = TraceSummary(50, 20.0, 18.0, host_ms=2.0, host_cpu_ms=20.0)
CPU_IDLE = TraceSummary(50, 100.0, 18.0, host_ms=82.0, host_cpu_ms=12.0)
CPU_STARVED = TraceSummary(50, 100.0, 18.0, host_ms=82.0, host_cpu_ms=98.0)
ON_CPU = Served("efficientnet-lite0", "cpu", "fp32", 8, "compiled", {})
ON_GPU = Served("resnet50", "NVIDIA H200", "fp16", 8, "compiled, CUDA graphs of 1 and 8 on 3 lanes: 2 launches", {})


@pytest.mark.parametrize(
    ("trace", "disease"),
    [(CPU_BUSY, Disease.COMPUTE), (CPU_IDLE, Disease.LITTLE_ASKED), (CPU_STARVED, Disease.FED_SLOWLY)],
)
def test_a_service_on_a_cpu(trace: TraceSummary, disease: Disease) -> None:
    verdict = diagnose(Evidence(trace=trace, served=ON_CPU))
    assert verdict.disease is disease
    assert "the forward runs" in verdict.evidence[0]
    assert "GPU" not in "\n".join(verdict.evidence)


def test_images_that_pile_up_before_the_decoders_are_starvation_whatever_the_cpus_could() -> None:
    piled = replace(SERVICE, decode_wait_ms=30.0, batch_fill=1.2, img_s=500)
    device = replace(DEVICE, util_percent=12.0)
    for trace in (None, replace(WAITING, host_cpu_ms=None)):
        assert diagnose(Evidence(device, piled, trace=trace, served=ON_GPU)).disease is Disease.FED_SLOWLY


def test_one_caller_leaves_the_decoders_idle_however_slow_they_are() -> None:
    one = ServiceMetrics(10, 0.8, 1.0, 8, decode_ms=58.0, queue_ms=0.1, forward_ms=2.0, cpus=16, decode_wait_ms=3.0)
    assert diagnose(Evidence(service=one, trace=replace(WAITING, host_cpu_ms=None))).disease is Disease.LITTLE_ASKED


@pytest.mark.parametrize("served", [ON_CPU, ON_GPU])
@pytest.mark.parametrize("trace", [HEALTHY, LAUNCH_BOUND, SYNC_BOUND, CHURN])
def test_what_a_service_has_already_is_no_advice(served: Served, trace: TraceSummary) -> None:
    left = tuple(each for each in EXPERIMENTS if each.factor not in served.has)
    verdict = diagnose(Evidence(trace=trace, roofline=COMPUTES, experiments=left, served=served))
    assert verdict.setting
    assert not any(verdict.setting == advice._HOW[factor] for factor in served.has)


def test_a_healthy_service_that_has_everything_is_left_alone() -> None:
    evidence = Evidence(replace(DEVICE, util_percent=97.0), SERVICE, trace=HEALTHY, roofline=COMPUTES, served=ON_GPU)
    verdict = diagnose(evidence)
    assert verdict.disease is Disease.COMPUTE
    assert verdict.setting == "none: the device is doing its work"


def test_what_a_service_has_is_read_from_its_own_words() -> None:
    assert ON_GPU.has == set(Factor)
    assert ON_CPU.has == {Factor.COMPILE}
    assert replace(ON_GPU, execution="eager: --no-compile, CUDA graphs of 8").has == set(Factor) - {Factor.COMPILE}
    assert replace(ON_GPU, dtype="tf32", execution="compiled, no CUDA graph: out of memory").has == {Factor.COMPILE}
