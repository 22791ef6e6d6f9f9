"""The layers, one after the other, as an engineer would go. Each adds its evidence, or says why it cannot."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bench.doctor.evidence import DirectFeed, Evidence, Factor
from bench.doctor.experiments import run_experiments, sync_off
from bench.doctor.nvml import NvmlError, Sampler
from bench.doctor.roofline import roofline
from bench.doctor.service import MetricsError, watch
from bench.doctor.subject import Run, Subject, SubjectError, ms_per_batch
from bench.events import from_file
from bench.trace import profile_batches, summarize
from pipeline.cpus import available_cpus

# Stands in for a layer's result on the terminal while it works.
Progress = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to look at, and for how long.

    Attributes:
        subject: the model, if one is named.
        loop: one batch of the user's own loop, profiled instead of the bare model.
        target: "host:port" of a running service.
        trace, trace_batches: a profile made elsewhere, and how many batches it holds.
        gpu: as NVML counts.
        seconds: of each measurement.
    """

    subject: Subject | None = None
    loop: Run | None = None
    target: str = ""
    metrics_url: str = ""
    trace: Path | None = None
    trace_batches: int = 1
    factors: tuple[Factor, ...] = tuple(Factor)
    gpu: int = 0
    batches: int = 200
    seconds: float = 2.0


@dataclass(slots=True)
class Examination:
    """Evidence as it grows; `unseen` has one line for each thing that could not be looked at."""

    plan: Plan
    progress: Progress = lambda _: nullcontext()
    evidence: Evidence = field(default_factory=Evidence)
    unseen: list[str] = field(default_factory=list)

    def run(self) -> Evidence:
        """All layers."""
        with torch.inference_mode():
            for layer in (self._service, self._device_and_feed, self._profile, self._experiments, self._roofline):
                with self.progress(layer.__name__.strip("_").replace("_", " ")):
                    layer()
        return self.evidence

    def _add(self, **layer: Any) -> None:
        self.evidence = replace(self.evidence, **layer)

    def _service(self) -> None:
        """NVML and metrics over the same seconds, while the service's own callers call."""
        if not self.plan.target:
            return
        batch_size = _served_batch_size(self.plan.target)
        sampler = self._sampler()
        with sampler or nullcontext():
            self._metrics(batch_size)
        if sampler:
            self._add(device=sampler.samples())

    def _metrics(self, batch_size: int) -> None:
        if not self.plan.metrics_url:
            self.unseen.append("metrics: no --metrics-url (the server's --metrics-port): load and queues are not seen")
            time.sleep(self.plan.seconds)
            return
        try:
            self._add(service=watch(self.plan.metrics_url, self.plan.seconds, batch_size, available_cpus()))
        except MetricsError as error:
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

    def _sampler(self) -> Sampler | None:
        try:
            return Sampler(self.plan.gpu)
        except NvmlError as error:
            self.unseen.append(str(error))
            return None

    def _profile(self) -> None:
        plan = self.plan
        if plan.trace:
            self._add(trace=summarize(from_file(plan.trace), plan.trace_batches))
        elif plan.target:
            self.unseen.append("profile: the service's own batches were not profiled; give one with --trace")
        elif not torch.cuda.is_available():
            self.unseen.append("profile: no GPU here, so no kernels, gaps or waits to see")
        elif plan.loop:
            self._add(trace=profile_batches(plan.loop, plan.batches))
        elif plan.subject:
            self._add(trace=profile_batches(plan.subject.run, plan.batches))

    def _experiments(self) -> None:
        plan = self.plan
        if plan.subject:
            factors = [factor for factor in plan.factors if not (factor is Factor.SYNC_OFF and plan.loop)]
            self._add(experiments=tuple(run_experiments(plan.subject, factors, plan.seconds)))
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


def _served_batch_size(target: str) -> int:
    from warmlane.client import Client  # here, since a bare model needs no gRPC
    from warmlane.errors import WarmlaneError

    try:
        with Client(target) as client:
            return client.model().batch_size
    except WarmlaneError as error:
        raise SubjectError(f"--target {target}: {error}") from None
