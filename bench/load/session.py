"""A service that is driven, and what all scenarios need to measure it."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench.calibration import Calibration
from bench.console import running_service
from bench.generator import Generator, Load, Plan
from bench.load.looks import Look
from bench.load.options import Options
from bench.load.reference import Reference, first_answers
from bench.load.results import Results, summarize
from bench.load.watch import Watch
from bench.nvml import NvmlError, Sampler
from bench.ports import free_port
from bench.service import with_own_ports
from warmlane.client import Client
from warmlane.results import ModelInfo

_LOCAL = ("127.", "localhost:", "[::1]:", "ipv4:127.", "ipv6:[::1]:")


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement.

    Attributes:
        scenario: the name of the scenario that it belongs to.
        label: of the measurement, for people, such as "closed, 16 callers".
        step: it only serves a search, and no figure of its own hangs on it.
    """

    scenario: str
    label: str
    plan: Plan
    load: Load
    results: Results
    step: bool = False

    @property
    def valid(self) -> bool:
        """Whether its figures mean anything."""
        return bool(self.results["valid"])


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that is ready before the first measurement.

    Attributes:
        unseen: one line for each thing that cannot be watched.
        began_s: when it was ready, in seconds of CLOCK_MONOTONIC.
    """

    console: Console
    options: Options
    target: str
    model: ModelInfo
    reference: Reference
    generator: Generator
    calibration: Calibration
    metrics_url: str
    unseen: list[str]
    began_s: float = field(default_factory=time.monotonic)

    def plan(self, callers: int = 1, **changes: Any) -> Plan:
        """A plan for so many callers, with what the options say of all measurements."""
        options = self.options
        plan = Plan(
            self.target,
            options.files,
            callers,
            min(options.processes, callers),
            options.warmup_seconds,
            options.seconds,
            # One caller has one call under way, and one connection.
            connections=options.connections_each if callers > 1 or changes.get("rate") else 1,
            expected=self.reference.answers,
        )
        return replace(plan, **changes)

    def measure(self, scenario: str, label: str, plan: Plan, *, step: bool = False) -> Run:
        """Drive the service, and watch it meanwhile."""
        total_s = plan.warmup_s + plan.seconds if self.metrics_url else None
        with _progress(self.console, f"{scenario}, {label}", total_s) as on_look, self._watch(on_look) as watch:
            load = self.generator.run(plan)
            watched = watch.between(load.open_s, load.open_s + load.seconds)
        if watch.unseen and watch.unseen not in self.unseen:
            self.unseen.append(watch.unseen)
        results = {"began_s": load.open_s - self.began_s}
        results |= summarize(load, plan, watched, self.options.rounds)
        return Run(scenario, label, plan, load, results, step)

    def _watch(self, on_look: Any) -> Watch:
        return Watch(self.metrics_url, self._sampler(), on_look)

    def _sampler(self) -> Sampler | None:
        return None if _no_gpu(self.model, self.target) else _sampler(self.options.gpu)[0]


@contextlib.contextmanager
def session(console: Console, options: Options, own: Reference | None) -> Iterator[Session]:
    """Start what is needed, and end it.

    Args:
        own: what a server of our own is to answer.

    Raises:
        ServiceError, WarmlaneError: there is no service to be driven.
        ValueError: no file can be sent.
    """
    with contextlib.ExitStack() as stack:
        with console.status("starting the load generator"):
            generator = stack.enter_context(Generator(options.files, options.processes))
            calibration = stack.enter_context(Calibration())
        target, metrics_url = options.target, options.metrics
        if not target:
            server_args, metrics_url = with_metrics(with_own_ports(options.server_args))
            target = stack.enter_context(running_service(console, server_args)).target
        with Client(target) as client:
            model = client.model()
        reference = own or first_answers(target, options.files, model.dtype)
        unseen = list(_unseen(model, target, metrics_url, options.gpu))
        yield Session(console, options, target, model, reference, generator, calibration, metrics_url, unseen)


def with_metrics(server_args: Sequence[str]) -> tuple[list[str], str]:
    """The settings with a metrics page, and its address."""
    if "--metrics-port" in server_args:
        port = server_args[list(server_args).index("--metrics-port") + 1]
        return list(server_args), _page(port)
    port = str(free_port())
    return [*server_args, "--metrics-port", port], _page(port)


def _page(port: str) -> str:
    return f"http://127.0.0.1:{port}/metrics"


def _unseen(model: ModelInfo, target: str, metrics_url: str, gpu: int) -> Iterator[str]:
    if not metrics_url:
        yield "metrics: no --metrics URL: CPU, memory, queues and batches of the service are not seen"
    why = _no_gpu(model, target) or _sampler(gpu)[1]
    if why:
        yield why


def _no_gpu(model: ModelInfo, target: str) -> str:
    """Why NVML has nothing to say of this service; empty where it may have."""
    if model.device == "cpu":
        return "NVML: the service computes on a CPU"
    return "" if target.startswith(_LOCAL) else f"NVML: {target} is another machine"


def _sampler(gpu: int) -> tuple[Sampler | None, str]:
    try:
        return Sampler(gpu), ""
    except NvmlError as error:
        return None, str(error)


@contextlib.contextmanager
def _progress(console: Console, label: str, total_s: float | None) -> Iterator[Any]:
    """Shows how far a measurement is, and what the service does just now; without looks, only that time passes."""
    columns = (TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total_s, now="")
        yield lambda before, after: _show(progress, task, before, after)


def _show(progress: Progress, task: TaskID, before: Look, after: Look) -> None:
    now = f"{after.img_s_since(before):,.0f} img/s, {after.slots_in_use:.0f} images on their way"
    progress.update(task, advance=after.at_s - before.at_s, now=now)
