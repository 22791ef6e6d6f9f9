"""Intervals, trace summaries of hand-made events, and a real profile of a CPU."""

import json
import random
from pathlib import Path

import pytest
import torch

from bench import intervals
from bench.events import Event, Kind, from_file
from bench.trace import END_MARK, TraceSummary, profile_batches, summarize
from pipeline.profiling import FORWARD_MARK


def event(kind: Kind, name: str, start_us: float, duration_us: float, *shapes: tuple[int, ...]) -> Event:
    return Event(kind, name, start_us, start_us + duration_us, shapes)


def kernel(start_us: float, duration_us: float) -> Event:
    return event("kernel", "gemm", start_us, duration_us)


def call(name: str, start_us: float, duration_us: float = 5) -> Event:
    return event("call", name, start_us, duration_us)


def random_intervals(seed: int) -> list[intervals.Interval]:
    dice = random.Random(seed)
    starts = [dice.randrange(90) for _ in range(12)]
    return intervals.union((start, start + dice.randrange(1, 8)) for start in starts)


def ticks(covered: intervals.Intervals) -> set[int]:
    return {tick for start, end in covered for tick in range(int(start), int(end))}


@pytest.mark.parametrize("seed", range(50))
def test_interval_arithmetic_is_that_of_sets(seed: int) -> None:
    left, right = random_intervals(seed), random_intervals(seed + 1000)
    assert ticks(intervals.intersect(left, right)) == ticks(left) & ticks(right)
    assert ticks(intervals.subtract(left, right)) == ticks(left) - ticks(right)
    assert intervals.total(left) == len(ticks(left))
    points = [start for start, _ in right]
    assert intervals.containing(left, points) == [each for each in left if any(each[0] <= p <= each[1] for p in points)]


def test_kernels_on_several_streams_are_not_counted_twice() -> None:
    summary = summarize([kernel(0, 1000), kernel(500, 1000), kernel(600, 100), kernel(1900, 100)], batches=1)
    assert summary.kernel_ms == pytest.approx(1.6)
    assert summary.wall_ms == pytest.approx(2.0)
    assert summary.gpu_busy == pytest.approx(0.8)
    assert summary.gap_ms == pytest.approx(0.4)
    assert summary.kernels == 4


def test_causes_and_kernels_add_up_to_the_wall() -> None:
    dice = random.Random(7)
    names = ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMemcpyAsync"]
    events = [call(dice.choice(names), dice.randrange(50_000), dice.randrange(1, 60)) for _ in range(200)]
    events += [kernel(dice.randrange(50_000), dice.randrange(1, 90)) for _ in range(200)]
    events += [event("copy", "Memcpy HtoD (Pinned -> Device)", dice.randrange(50_000), 40) for _ in range(20)]
    events += [event("op", "aten::cudnn_convolution", dice.randrange(50_000), 200) for _ in range(20)]
    summary = summarize(events, batches=4)
    causes_ms = (summary.churn_ms, summary.copy_ms, summary.host_ms, summary.sync_ms, summary.launch_ms)
    assert sum(causes_ms) + summary.kernel_ms == pytest.approx(summary.wall_ms)
    assert all(each > 0 for each in causes_ms)


def test_gaps_between_launches_are_launching() -> None:
    events = [call("cudaLaunchKernel", 40 * i) for i in range(100)] + [kernel(40 * i + 6, 8) for i in range(100)]
    summary = summarize(events, batches=2)
    assert (summary.launches, summary.kernels, summary.short_kernels) == (50, 50, 1.0)
    assert summary.launch_ms == pytest.approx(summary.gap_ms)


def test_a_gap_with_a_wait_in_it_is_the_waits() -> None:
    events = [call("cudaLaunchKernel", 0), kernel(10, 100), call("cudaStreamSynchronize", 6, 110)]
    events += [call("cuLaunchKernelEx", 140), kernel(150, 100), call("cudaLaunchKernelExC", 146), kernel(260, 100)]
    summary = summarize(events, batches=1)
    assert summary.sync_ms == pytest.approx(0.04)  # from the first kernel's end at 110 to 150
    assert summary.launch_ms == pytest.approx(0.02)  # before the first kernel, and from 250 to 260
    assert (summary.syncs, summary.launches) == (1, 3)
    assert summary.sync_wait_ms == pytest.approx(0.11)


def test_a_long_stretch_without_calls_is_the_hosts() -> None:
    events = [call("cudaLaunchKernel", 0), kernel(5, 100), call("cudaLaunchKernel", 2000), kernel(2010, 100)]
    summary = summarize(events, batches=1)
    assert summary.host_ms == pytest.approx(1.895)
    assert summary.prepare_ms == pytest.approx(1.995)


def test_queries_do_not_make_the_host_look_busy_with_cuda() -> None:
    events = [call("cudaLaunchKernel", 0), kernel(5, 100), call("cudaLaunchKernel", 2000), kernel(2010, 100)]
    polls = [call("cudaEventQuery", 20 * i) for i in range(1, 90)]
    assert summarize(events + polls, batches=1).host_ms == summarize(events, batches=1).host_ms


def test_an_algorithm_search_is_no_useful_kernel_time() -> None:
    search = event("op", "aten::cudnn_convolution", 0, 5000)
    tried = [kernel(500 * i, 400) for i in range(10)] + [
        call("cudaEventSynchronize", 500 * i + 10, 380) for i in range(10)
    ]
    summary = summarize([search, *tried, call("cudaLaunchKernel", 5010), kernel(5020, 1000)], batches=1)
    assert summary.kernel_ms == pytest.approx(1.0)
    assert summary.churn_ms == pytest.approx(5.0)
    assert summary.searches == 1


def test_an_ordinary_convolution_is_no_search() -> None:
    events = [event("op", "aten::cudnn_convolution", 0, 40), call("cudaLaunchKernel", 20), kernel(30, 500)]
    summary = summarize(events, batches=1)
    assert (summary.searches, summary.churn_ms) == (0, 0)


def test_copies_and_which_of_them_block() -> None:
    events = [
        event("copy", "Memcpy HtoD (Pageable -> Device)", 0, 100),
        event("copy", "Memcpy HtoD (Pinned -> Device)", 200, 100),
        event("copy", "Memcpy DtoH (Device -> Pinned)", 900, 50),
        kernel(300, 500),
    ]
    summary = summarize(events, batches=1)
    assert summary.copies_in_ms == pytest.approx(0.2)
    assert summary.copies_out_ms == pytest.approx(0.05)
    assert summary.blocking_copies == 1
    assert summary.copy_ms == pytest.approx(0.25)


def test_batch_shapes_are_those_of_the_first_layer() -> None:
    stem, later = (64, 3, 7, 7), (64, 64, 3, 3)
    events = []
    for i, rows in enumerate([8, 5, 8, 3]):
        events.append(event("op", "aten::conv2d", 100 * i, 10, (rows, 3, 224, 224), stem))
        events.append(event("op", "aten::conv2d", 100 * i + 20, 10, (rows, 64, 56, 56), later))
        events.append(event("op", "aten::conv2d", 100 * i + 40, 10, (rows, 64, 28, 28), later))
    assert summarize(events, batches=4).batch_shapes == 3


def test_own_waiting_at_the_end_is_left_out() -> None:
    events = [call("cudaLaunchKernel", 0), kernel(5, 5000), event("mark", END_MARK, 50, 4960)]
    summary = summarize([*events, call("cudaDeviceSynchronize", 60, 4940)], batches=1)
    assert (summary.syncs, summary.sync_wait_ms, summary.prepare_ms) == (0, 0, 0)
    assert summary.gpu_busy > 0.99


def test_nothing_traced_is_nothing_busy() -> None:
    assert summarize([], batches=1).gpu_busy == 0


def test_without_the_profiler_launches_are_what_gets_faster() -> None:
    traced = TraceSummary(1, wall_ms=10, kernel_ms=2, host_ms=3, launch_ms=5)
    plain = traced.at_wall(7)
    assert (plain.wall_ms, plain.kernel_ms, plain.host_ms, plain.launch_ms) == (7, 2, 3, 2)
    tight = traced.at_wall(3.5)
    assert (tight.host_ms, tight.launch_ms) == (1.5, 0)


def test_waiting_is_host_time_without_cpu_use() -> None:
    assert TraceSummary(1, wall_ms=10, kernel_ms=1, host_ms=8, host_cpu_ms=2).waiting_ms == 8
    assert TraceSummary(1, wall_ms=10, kernel_ms=1, host_ms=8, host_cpu_ms=9.5).waiting_ms == 0.5
    assert TraceSummary(1, wall_ms=10, kernel_ms=1, host_ms=8, host_cpu_ms=40).waiting_ms == 0
    assert TraceSummary(1, wall_ms=10, kernel_ms=1, host_ms=8).waiting_ms == 0


def test_a_chrome_trace_is_read_by_category(tmp_path: Path) -> None:
    rows = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10.5, "dur": 2.5, "args": {"stream": 7}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "step", "ts": 0, "dur": 100},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::linear",
            "ts": 1,
            "dur": 5,
            "args": {"Input Dims": [[8, 4], [], "x"]},
        },
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "id": 3},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    assert from_file(path) == [
        event("kernel", "gemm", 10.5, 2.5),
        event("op", "aten::linear", 1, 5, (8, 4), ()),
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [3]}'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a trace written by"):
        from_file(path)


def test_a_real_profile_on_the_cpu_has_shapes_and_no_kernels() -> None:
    layer = torch.nn.Linear(4, 4)
    batches = iter(torch.rand(rows, 4) for rows in [3] * 22 + [2, 3] * 11)
    summary = profile_batches(lambda: layer(next(batches)), batches=20, warmup=2)
    assert summary.batch_shapes == 2
    assert summary.wall_ms > 0
    assert summary.host_cpu_ms is not None
    if not torch.cuda.is_available():
        assert summary.kernels == 0


def test_forwards_stand_in_for_kernels_where_there_are_none() -> None:
    forwards = [event("mark", FORWARD_MARK, 1000, 3000), event("mark", FORWARD_MARK, 6000, 3000)]
    operators = [event("op", "aten::mul", 4500, 100)]
    summary = summarize([*forwards, *operators], batches=2, window=(0, 10_000))
    assert (summary.wall_ms, summary.kernel_ms, summary.host_ms, summary.kernels) == (5.0, 3.0, 2.0, 0)
    with_kernels = summarize([*forwards, kernel(2000, 1000)], batches=2, window=(0, 10_000))
    assert with_kernels.kernel_ms == 0.5
