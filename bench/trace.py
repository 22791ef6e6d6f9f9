"""Where the time of a batch goes, from a torch profiler trace.

    kernels   union of kernel intervals: the time in which the device works for somebody. In the profile of a service
              on a CPU there are none, and the forwards stand in their place
    idle      the rest of the wall, split by what held the device up, first match wins:
        churn     searching or planning algorithms for a shape not seen before (cudnn.benchmark, cuDNN plans)
        copy      the device copies and does nothing else
        host      the host is in none of CUDA's calls for long: it prepares data, or waits for some
        sync      the host had waited for the device, so nothing was queued behind the last kernel
        launch    the host launches, but slower than the device runs

`profile_batches(run)` measures a loop; `summarize(events, batches)` is the arithmetic, on plain events, without a GPU.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.events import Event, Shape, from_profiler
from bench.intervals import Interval, containing, intersect, subtract, total, union
from pipeline.profiling import FORWARD_MARK

# An eager launch costs the host about as much, so a stream of such kernels cannot hide it. The incident's own limit.
SHORT_KERNEL_US = 10.0
# Eager PyTorch comes back to CUDA every 5 to 50 us; a stretch ten times that is the program doing something else.
LONG_STRETCH_US = 300.0
# An eager convolution costs the host 20 to 50 us; one of a millisecond has built or tried plans.
SLOW_CONVOLUTION_US = 1_000.0
# Own waiting at the end of a profile is marked with this range, and left out.
END_MARK = "warmlane: end of profile"

_SYNCS = (
    *("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree"),
    *("cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"),
)
_LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cuGraphLaunch")
_COPY_CALLS = ("cudaMemcpy", "cuMemcpy", "cudaMemset", "cuMemset")


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Means of one batch, in milliseconds where the name ends so.

    Attributes:
        wall_ms: without the profiler where `profile_batches` measured it, else the traced window.
        kernel_ms: union of kernel intervals, searches for algorithms left out; on a CPU, of the forwards.
        churn_ms, copy_ms, host_ms, sync_ms, launch_ms: the causes of idleness in the module's docstring; they and
            `kernel_ms` add up to `wall_ms`.
        kernels: kernels on the device; 0 on a CPU.
        launches: kernel and graph launches by the host.
        short_kernels: share (0 to 1) of kernels under `SHORT_KERNEL_US`.
        syncs, sync_wait_ms: calls in which the host waited for the device, and their time, device busy or not.
        copies_in_ms, copies_out_ms: host to device, device to host.
        blocking_copies: copies that held the host: pageable memory, or `cudaMemcpy`.
        batch_shapes: distinct input shapes of the first weighted layer, over all batches.
        searches: convolutions that tried or planned algorithms.
        prepare_ms: time of the host outside CUDA's calls, device busy or not.
        host_cpu_ms: CPU time of the process, all threads; None where it was not measured.
    """

    batches: int
    wall_ms: float
    kernel_ms: float
    churn_ms: float = 0.0
    copy_ms: float = 0.0
    host_ms: float = 0.0
    sync_ms: float = 0.0
    launch_ms: float = 0.0
    kernels: float = 0.0
    launches: float = 0.0
    short_kernels: float = 0.0
    syncs: float = 0.0
    sync_wait_ms: float = 0.0
    copies_in_ms: float = 0.0
    copies_out_ms: float = 0.0
    blocking_copies: float = 0.0
    batch_shapes: int = 0
    searches: float = 0.0
    prepare_ms: float = 0.0
    host_cpu_ms: float | None = None

    @property
    def gpu_busy(self) -> float:
        """Share of the wall in which a kernel ran, 0 to 1."""
        return min(1.0, self.kernel_ms / self.wall_ms) if self.wall_ms else 0.0

    @property
    def gap_ms(self) -> float:
        """Time in which no kernel ran."""
        return max(0.0, self.wall_ms - self.kernel_ms)

    @property
    def waiting_ms(self) -> float:
        """The part of `host_ms` in which the process used no CPU: it waited for work. 0 if CPU was not measured."""
        if self.host_cpu_ms is None:
            return 0.0
        return min(self.host_ms, max(0.0, self.wall_ms - self.host_cpu_ms))

    def at_wall(self, wall_ms: float) -> "TraceSummary":
        """The same batch at the pace it has without the profiler, which slows launches above all."""
        idle_ms = max(0.0, wall_ms - self.kernel_ms)
        others = {name: getattr(self, name) for name in ("churn_ms", "copy_ms", "host_ms", "sync_ms")}
        scale = min(1.0, idle_ms / sum(others.values())) if any(others.values()) else 1.0
        scaled = {name: value * scale for name, value in others.items()}
        return replace(self, wall_ms=wall_ms, launch_ms=max(0.0, idle_ms - sum(scaled.values())), **scaled)


def profile_batches(run: Callable[[], object], batches: int = 200, warmup: int = 10) -> TraceSummary:
    """Run a loop's body `batches` times without and then with the profiler.

    Args:
        run: one batch; what it leaves running on the device is waited for at the end, not in between.
        batches: 200 and more give steady means.
    """
    for _ in range(warmup):
        run()
    wall_ms, cpu_ms = _time(run, batches)
    with profile(activities=_activities(), record_shapes=True, acc_events=True) as prof:
        for _ in range(batches):
            run()
        with record_function(END_MARK):
            _wait()
    return replace(summarize(from_profiler(prof), batches).at_wall(wall_ms), host_cpu_ms=cpu_ms)


def summarize(events: Sequence[Event], batches: int, window: Interval | None = None) -> TraceSummary:
    """The means of a batch over a trace of `batches`.

    Args:
        window: begin and end of the trace in microseconds; from the first event to the last where it is not known.
    """
    assert batches > 0
    events = _before_end(events)
    if not events:
        return TraceSummary(batches, 0.0, 0.0)
    # Where the window is known, the host may have been busy elsewhere at its ends too.
    edges = [(window[0], window[0]), (window[1], window[1])] if window else []
    window = window or (min(event.start_us for event in events), max(event.end_us for event in events))
    kernels = [event for event in events if event.kind == "kernel"]
    copies = [event for event in events if event.kind == "copy"]
    calls = [event for event in events if event.kind == "call" and _is_work(event.name)]
    syncs = _spans(event for event in calls if event.name in _SYNCS)
    searches, planning = _searches(events, syncs)
    busy = intersect(subtract(_spans(kernels or _forwards(events)), searches), [window])
    stretches = _long_stretches([*_spans(calls), *edges])
    causes = _split_idle(subtract([window], busy), union([*searches, *planning]), _spans(copies), stretches, syncs)

    def per_batch(us: float) -> float:
        return us / 1e3 / batches

    return TraceSummary(
        batches,
        wall_ms=per_batch(window[1] - window[0]),
        kernel_ms=per_batch(total(busy)),
        **{f"{cause}_ms": per_batch(total(stretch)) for cause, stretch in causes.items()},
        kernels=len(kernels) / batches,
        launches=sum(event.name.startswith(_LAUNCHES) for event in calls) / batches,
        short_kernels=_short_share(kernels),
        syncs=sum(event.name in _SYNCS for event in calls) / batches,
        sync_wait_ms=per_batch(total(syncs)),
        copies_in_ms=per_batch(total(_spans(event for event in copies if "HtoD" in event.name))),
        copies_out_ms=per_batch(total(_spans(event for event in copies if "DtoH" in event.name))),
        blocking_copies=_blocking_copies(copies, calls) / batches,
        batch_shapes=_batch_shapes(events),
        searches=(len(searches) + len(planning)) / batches,
        prepare_ms=per_batch(total(stretches)),
    )


def _split_idle(
    idle: list[Interval],
    churn: list[Interval],
    copies: list[Interval],
    stretches: list[Interval],
    syncs: list[Interval],
) -> dict[str, list[Interval]]:
    """Every idle stretch under the first cause that explains it."""
    # Where a wait ended inside a gap: without it the next launch would have been queued already.
    after_wait = containing(idle, [end for _, end in syncs])
    causes = {}
    for cause, stretch in (("churn", churn), ("copy", copies), ("host", stretches), ("sync", after_wait)):
        causes[cause] = intersect(idle, stretch)
        idle = subtract(idle, stretch)
    return causes | {"launch": idle}


def _searches(events: Sequence[Event], syncs: list[Interval]) -> tuple[list[Interval], list[Interval]]:
    """Convolutions that timed algorithms on the device (nothing else makes one wait for it), and other slow ones."""
    convolutions = _spans(event for event in events if event.kind == "op" and "cudnn_convolution" in event.name)
    searches = containing(convolutions, [end for _, end in syncs])
    slow = [span for span in subtract(convolutions, searches) if span[1] - span[0] >= SLOW_CONVOLUTION_US]
    return searches, slow


def _long_stretches(calls: Iterable[Interval]) -> list[Interval]:
    """Between two of CUDA's calls, on any thread, where the host did something else for long."""
    spans = sorted(calls)
    between = zip((end for _, end in spans), (start for start, _ in spans[1:]), strict=False)
    return [(end, start) for end, start in between if start - end >= LONG_STRETCH_US]


def _forwards(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == "mark" and event.name == FORWARD_MARK]


def _batch_shapes(events: Sequence[Event]) -> int:
    """Distinct inputs of the layer that comes first, told by its weight's shape."""
    layers: dict[tuple[str, Shape], set[Shape]] = defaultdict(set)
    for event in sorted((event for event in events if _is_layer(event)), key=lambda event: event.start_us):
        layers[event.name, event.shapes[1]].add(event.shapes[0])
    return len(next(iter(layers.values()))) if layers else 0


def _is_layer(event: Event) -> bool:
    return event.kind == "op" and event.name in ("aten::conv2d", "aten::linear") and len(event.shapes) >= 2


def _is_work(call: str) -> bool:
    """Launching, copying or waiting; queries and bookkeeping tell nothing about what the host is at."""
    return call in _SYNCS or call.startswith(_LAUNCHES) or call.startswith(_COPY_CALLS)


def _blocking_copies(copies: Sequence[Event], calls: Sequence[Event]) -> int:
    return sum("Pageable" in event.name for event in copies) + sum(event.name == "cudaMemcpy" for event in calls)


def _short_share(kernels: Sequence[Event]) -> float:
    short = sum(event.end_us - event.start_us < SHORT_KERNEL_US for event in kernels)
    return short / len(kernels) if kernels else 0.0


def _before_end(events: Sequence[Event]) -> list[Event]:
    """Without what the host did once the profiled batches were issued."""
    end_us = min((event.start_us for event in events if event.name == END_MARK), default=float("inf"))
    return [event for event in events if event.kind in ("kernel", "copy") or event.start_us < end_us]


def _spans(events: Iterable[Event]) -> list[Interval]:
    return union((event.start_us, event.end_us) for event in events)


def _activities() -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]


def _time(run: Callable[[], object], batches: int) -> tuple[float, float]:
    """Wall and CPU milliseconds of a batch, without the profiler."""
    _wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(batches):
        run()
    _wait()
    return (time.perf_counter() - wall) * 1e3 / batches, (time.process_time() - cpu) * 1e3 / batches


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
