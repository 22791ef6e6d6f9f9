"""The layers, one after the other, as an engineer would go. Each adds its evidence, or says why it cannot."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench.doctor.evidence import DirectFeed, Evidence, Experiment, Factor, Served, ServiceMetrics
from bench.doctor.experiments import run_experiments, sync_off
from bench.doctor.roofline import roofline
from bench.doctor.served import ProfileError, ask_model, copy_of, fetch_profile
from bench.doctor.service import watch
from bench.doctor.subject import Run, Subject, SubjectError, ms_per_batch
from bench.events import events_of, parse
from bench.live import ProbeError, is_marked, marked, means, read
from bench.metrics_reading import MetricsError
from bench.nvml import NvmlError, Sampler
from bench.trace import TraceSummary, profile_batches, summarize
from pipeline.cpus import available_cpus
from pipeline.profiling import Work

# As many as a service agrees to record.
MAX_BATCHES = 1000

# Stands in for a layer's result on the terminal while it works.
Progress = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to look at, and for how long.

    Attributes:
        subject: the model, if one is named.
        loop: one batch of the user's own loop, profiled instead of the bare model.
        target: "host:port" of a running service.
        metrics_url: of its Prometheus metrics.
        admin: "host:port" of its admin calls.
        trace, trace_batches: a profile made elsewhere, and how many batches it holds.
        gpu: as NVML counts.
        seconds: of each measurement.
        profile_s: that a service may take for the batches to profile.
    """

    subject: Subject | None = None
    loop: Run | None = None
    target: str = ""
    metrics_url: str = ""
    admin: str = ""
    trace: Path | None = None
    trace_batches: int = 1
    factors: tuple[Factor, ...] = tuple(Factor)
    gpu: int = 0
    batches: int = 200
    seconds: float = 2.0
    profile_s: float = 30.0


@dataclass(slots=True)
class Examination:
    """Evidence as it grows; `unseen` has one line for each thing that could not be looked at."""

    plan: Plan
    progress: Progress = lambda _: nullcontext()
    evidence: Evidence = field(default_factory=Evidence)
    unseen: list[str] = field(default_factory=list)

    def run(self) -> Evidence:
        """All layers."""
        layers = (
            *(self._service, self._profile, self._copy, self._device_and_feed),
            *(self._experiments, self._roofline),
        )
        with torch.inference_mode():
            for layer in layers:
                with self.progress(layer.__name__.strip("_").replace("_", " ")):
                    layer()
        return self.evidence

    def _add(self, **layer: Any) -> None:
        self.evidence = replace(self.evidence, **layer)

    def _service(self) -> None:
        """NVML and metrics over the same seconds, while the service's own callers call."""
        if not self.plan.target:
            return
        served = ask_model(self.plan.target)
        self._add(served=served)
        sampler = self._sampler(served)
        with sampler or nullcontext():
            self._metrics(served.batch_size)
        if sampler:
            self._add(device=sampler.samples())

    def _metrics(self, batch_size: int) -> None:
        if not self.plan.metrics_url:
            self.unseen.append("metrics: no --metrics-port (the server's own): load and queues are not seen")
            time.sleep(self.plan.seconds)
            return
        try:
            self._add(service=watch(self.plan.metrics_url, self.plan.seconds, batch_size, available_cpus()))
        except MetricsError as error:
            self.unseen.append(str(error))

    def _copy(self) -> None:
        """Of the served model, unless the user has named one: the serving engine is left alone from here on."""
        served, plan = self.evidence.served, self.plan
        if not served or plan.subject or not plan.factors:
            return
        try:
            self.plan = replace(plan, subject=copy_of(served))
        except SubjectError as error:
            self.unseen.append(str(error))

    def _device_and_feed(self) -> None:
        """Random numbers straight into the model, watched by NVML unless the service was."""
        if not self.plan.subject:
            return
        sampler = None if self.plan.target else self._sampler()
        subject = self.plan.subject
        with sampler or nullcontext():
            feed = DirectFeed(len(subject.batch), ms_per_batch(subject.run, self.plan.seconds))
        self._add(feed=feed)
        if sampler:
            self._add(device=sampler.samples())

    def _sampler(self, served: Served | None = None) -> Sampler | None:
        if served and not served.on_gpu:
            self.unseen.append("NVML: the service computes on a CPU: its forwards are looked at, not kernels")
            return None
        try:
            return Sampler(self.plan.gpu)
        except NvmlError as error:
            self.unseen.append(str(error))
            return None

    def _profile(self) -> None:
        plan = self.plan
        if plan.trace:
            self._add(trace=summarize_file(plan.trace, plan.trace_batches))
        elif plan.target:
            self._profile_service()
        elif not torch.cuda.is_available():
            self.unseen.append("profile: no GPU here, so no kernels, gaps or waits to see")
        elif plan.loop:
            self._add(trace=profile_batches(plan.loop, plan.batches))
        elif plan.subject:
            self._add(trace=profile_batches(plan.subject.run, plan.batches))

    def _profile_service(self) -> None:
        """The serving engine, under its own callers' load."""
        if not self.plan.admin:
            self.unseen.append("profile: no --admin-port (the server's own): the service's own batches are not seen")
            return
        try:
            found = read(fetch_profile(self.plan.admin, min(self.plan.batches, MAX_BATCHES), self.plan.profile_s))
            self._add(trace=at_pace(means(found).trace, found.work, self.evidence.service))
        except (ProfileError, ValueError) as error:
            self.unseen.append(str(error))
        except ProbeError as error:
            self.unseen.append(f"profile: {error}")

    def _experiments(self) -> None:
        plan = self.plan
        if plan.subject:
            has = self.evidence.served.has if self.evidence.served else frozenset()
            factors = [factor for factor in plan.factors if factor not in has]
            if plan.loop:
                factors = [factor for factor in factors if factor is not Factor.SYNC_OFF]
            known = [Experiment(factor, note="the service has it already") for factor in plan.factors if factor in has]
            self._add(experiments=(*known, *run_experiments(plan.subject, factors, plan.seconds)))
        if plan.loop and Factor.SYNC_OFF in plan.factors and torch.cuda.is_available():
            self._add(experiments=(*self.evidence.experiments, sync_off(plan.loop, plan.seconds)))
        self.unseen += [f"{each.factor}: {each.note}" for each in self.evidence.experiments if not each.gain]

    def _roofline(self) -> None:
        if not self.plan.subject:
            self.unseen.append("roofline and experiments: name the model too (--factory or --model)")
            return
        try:
            self._add(roofline=roofline(self.plan.subject))
        except Exception as error:
            # Counting runs a stranger's forward under a dispatch mode that it may not bear.
            self.unseen.append(f"roofline: the model could not be counted ({str(error).splitlines()[0][:160]})")


def at_pace(trace: TraceSummary, work: Work, service: ServiceMetrics | None) -> TraceSummary:
    """A service's profile as it is without the profiler, with the share of the machine's CPU that the service took."""
    trace = replace(trace, host_cpu_ms=work.cpu_seconds * 1e3 / work.batches / available_cpus())
    # A CPU's forwards are slower under the profiler too, so that their pace is only known with it.
    if trace.kernels and service and 0 < service.ms_per_batch < trace.wall_ms:
        return trace.at_wall(service.ms_per_batch)
    return trace


def summarize_file(path: Path, batches: int) -> TraceSummary:
    """The means of a batch in a profile made elsewhere: of the slice, where a server has marked one.

    Raises:
        ValueError: it is no profile.
        ProbeError: a server's, that holds no batch.
    """
    content = parse(path.read_bytes(), str(path))
    if is_marked(content):
        found = marked(content)
        return at_pace(means(found).trace, found.work, None)
    return summarize(events_of(content), batches)
