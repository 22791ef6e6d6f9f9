"""One rung under one load: its pace as the callers see it, then a profile of the same load, and both put together."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from bench.doctor.diagnose import name_disease
from bench.doctor.evidence import Evidence
from bench.generator import Generator, Load, Plan
from bench.ladder.rungs import Rung
from bench.ladder.workers import Launch, Worker
from bench.live import Live
from bench.nvml import NvmlError, Sampler
from bench.summary import batch_fill, latency
from bench.usage import Usage

# From the request until the slice begins: the first profile of a process also loads CUPTI.
_FIRST_START_S, _START_S = 3.0, 1.0
# A profile of many kernels is written to a file and read again.
_PROFILE_END_S = 120.0
_SLOWER_UNDER_PROFILE = 1.5


class MeasureError(RuntimeError):
    """Calls failed, so that whatever was measured means nothing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a measurement takes.

    Attributes:
        warmup_s, seconds: of the load without a profiler.
        batches: to profile, if they come within `profile_s` seconds.
    """

    warmup_s: float
    seconds: float
    batches: int
    profile_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported of a rung under a load; times in milliseconds, shares 0 to 1, None where there is no GPU.

    Attributes:
        number, name: of the rung.
        model: by the name that the server takes.
        callers: calls under way at all times.
        qps: images answered per second by the one worker, all its processes.
        wall_ms: 1000 / qps.
        settle_s: seconds until batches of every size had been answered, before anything was measured.
        gpu_ms: kernel time of a batch over its real images.
        gpu_busy: kernel time over wall time.
        useful_busy: of it, what was spent on real images and not on padding.
        short_kernels: share of kernels under 10 us.
        gap_ms: time of a batch's wall in which no kernel ran.
        sync_ms: the part of it that follows a wait for the device.
        host_cpu_percent: of one core, all processes of the worker.
        cpu_percent_of: the same by process, where there are several.
        connections: that the callers opened, in all.
        nvml_util: what NVML calls utilisation.
        profiled_batches: in the profile that kernels come from.
        verdict: the doctor's, of what the profile shows.
        top1_agreement: with the reference, of the model that `conditions` name.
    """

    number: int
    name: str
    model: str
    callers: int
    qps: float
    wall_ms: float
    p50_ms: float
    batch_fill: float
    host_cpu_percent: float
    cpu_percent_of: dict[str, float] = field(default_factory=dict)
    connections: int = 1
    settle_s: float = 0.0
    gpu_ms: float | None = None
    gpu_busy: float | None = None
    useful_busy: float | None = None
    kernels_per_batch: float | None = None
    launches_per_batch: float | None = None
    short_kernels: float | None = None
    gap_ms: float | None = None
    sync_ms: float | None = None
    syncs_per_batch: float | None = None
    profiled_batches: int = 0
    nvml_util: float | None = None
    verdict: str | None = None
    top1_agreement: float | None = None
    incident: dict[str, float] | None = None


class Bench:
    """The load generators and what is asked of them, for all rungs.

    Args:
        callers: of the two loads: one, and many.
        processes: that the many callers are spread over.
        gpu: index of the GPU; None on a CPU.
    """

    def __init__(self, mix: str, callers: Sequence[int], processes: int, timing: Timing, gpu: int | None) -> None:
        self._mix = mix
        self._timing = timing
        self._processes = processes
        self._gpu = gpu
        self._generators = {count: Generator(mix, min(processes, count)) for count in callers}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for generator in self._generators.values():
            generator.close()

    def measure(self, worker: Worker, rung: Rung, launch: Launch) -> list[Row]:
        """A row for each load. All loads come before the first profile, which leaves its hooks in the process.

        Raises:
            MeasureError: calls failed.
            ProbeError: a profile failed.
        """
        rows = [self._load(worker, rung, launch.model, callers) for callers in self._generators]
        if self._gpu is None:
            return rows
        starts_s = (_FIRST_START_S, *[_START_S] * (len(rows) - 1))
        profiles = [self._profile(worker, row, start_s) for row, start_s in zip(rows, starts_s, strict=True)]
        return [with_profile(row, live, launch) for row, live in zip(rows, profiles, strict=True)]

    def _load(self, worker: Worker, rung: Rung, model: str, callers: int) -> Row:
        plan = self._plan(worker, callers, self._timing.warmup_s, self._timing.seconds)
        usage = Usage(worker.cpu_by_process)
        with _utilisation(self._gpu) as utilisation:
            load = self._generators[callers].run(plan, usage.cpu_seconds)
        if load.unexpected or not len(load.samples):
            raise MeasureError(f"{len(load.samples)} answers, errors {dict(load.errors)}\n{worker.log_tail()}")
        return replace(
            plain_row(rung, model, callers, load),
            cpu_percent_of=usage.percent_of(load.seconds),
            connections=plan.processes * plan.connections,
            settle_s=worker.settle_s,
            nvml_util=utilisation(),
        )

    def _profile(self, worker: Worker, row: Row, start_s: float) -> Live:
        timing = self._timing
        expected_s = timing.batches * row.batch_fill / row.qps
        limit_s = min(timing.profile_s, 0.5 + _SLOWER_UNDER_PROFILE * expected_s)
        plan = self._plan(worker, row.callers, timing.warmup_s, limit_s + start_s)
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(self._generators[row.callers].run, plan)
            time.sleep(timing.warmup_s)
            live = worker.profile(timing.batches, limit_s, plan.seconds + _PROFILE_END_S)
            load.result()
        return live

    def _plan(self, worker: Worker, callers: int, warmup_s: float, seconds: float) -> Plan:
        processes = min(self._processes, callers)
        # One caller has one request under way, and one connection.
        connections = worker.connections if callers > 1 else 1
        return Plan(worker.target, self._mix, callers, processes, warmup_s, seconds, connections=connections)


@contextmanager
def _utilisation(gpu: int | None) -> Iterator[Callable[[], float | None]]:
    """A function that says, after the block, what NVML saw meanwhile, 0 to 1; None where it sees nothing."""
    try:
        sampler = Sampler(gpu) if gpu is not None else None
    except NvmlError:
        sampler = None
    if sampler is None:
        yield lambda: None
        return
    with sampler:
        yield lambda: sampler.samples().util_percent / 100


def plain_row(rung: Rung, model: str, callers: int, load: Load) -> Row:
    """What the callers saw."""
    return Row(
        rung.number,
        rung.name,
        model,
        callers,
        qps=load.img_s,
        wall_ms=1e3 / load.img_s,
        p50_ms=latency(load.samples).p50_ms,
        batch_fill=batch_fill(load.samples),
        host_cpu_percent=100 * load.server_cpu_s / load.seconds,
        incident=asdict(rung.incident) if rung.incident and callers == 1 else None,
    )


def with_profile(row: Row, live: Live, launch: Launch) -> Row:
    """The row with what the device did: kernels from the profile, the wall from the load without it."""
    trace = live.trace.at_wall(row.wall_ms * row.batch_fill)
    rows = launch.padded_rows(row.number, row.batch_fill)
    return replace(
        row,
        gpu_ms=trace.kernel_ms / row.batch_fill,
        gpu_busy=trace.gpu_busy,
        useful_busy=trace.gpu_busy * row.batch_fill / rows,
        kernels_per_batch=trace.kernels,
        launches_per_batch=trace.launches,
        short_kernels=trace.short_kernels,
        gap_ms=trace.gap_ms,
        sync_ms=trace.sync_ms,
        syncs_per_batch=trace.syncs,
        profiled_batches=trace.batches,
        verdict=name_disease(Evidence(trace=trace), "throughput"),
    )
