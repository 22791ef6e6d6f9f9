"""The run: check the answers of every rung, then climb once for each model."""

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Console

from bench.doctor.served import ProfileError
from bench.ladder import report
from bench.ladder.answers import agreement, reference_top1, served_top1
from bench.ladder.measure import Bench, MeasureError, Row, Timing
from bench.ladder.rungs import Rung
from bench.ladder.workers import MIX, Crew, Launch, Worker
from bench.live import ProbeError
from bench.mix import mix_images
from bench.service import ServiceError
from pipeline.model import load_model
from pipeline.options import DEFAULT_MODEL
from warmlane.client import Client
from warmlane.errors import WarmlaneError

_FAILURES = (ServiceError, WarmlaneError, MeasureError, ProbeError, ProfileError)


@dataclass(slots=True)
class Ladder:
    """The run as it grows.

    Attributes:
        args: of the command line; see `bench.ladder.__main__`.
        device: "cpu" or "cuda:N".
        failed: what could not be measured, and why.
        device_name: as the workers call it.
        agreed: top-1 agreement by rung.
    """

    console: Console
    args: argparse.Namespace
    device: str
    rungs: Sequence[Rung]
    failed: dict[str, str] = field(default_factory=dict)
    device_name: str = "cpu"
    agreed: dict[int, float] = field(default_factory=dict)

    def run(self) -> list[Row]:
        """All rungs of all models."""
        gpu = None if self.device == "cpu" else int(self.device.partition(":")[2])
        with ExitStack() as stack:
            crews = [self._crew(stack, model) for model in self.args.models]
            if self.args.check_model != "none":
                self.agreed = self._agreements()
            bench = stack.enter_context(
                Bench(MIX, (1, self.args.callers), self.args.processes, _timing(self.args), gpu)
            )
            return [row for crew in crews for row in self._climb(bench, crew)]

    def _crew(self, stack: ExitStack, model: str) -> Crew:
        """The workers of a model, which begin to start."""
        self._say(f"{model}: starting the workers of all rungs")
        launch = self._launch(model, "default" if model == DEFAULT_MODEL else self.args.weights)
        return stack.enter_context(Crew(self.rungs, launch))

    def results(self, rows: Sequence[Row]) -> dict[str, Any]:
        """For the record."""
        gains = {
            model: {
                str(callers): report.speedup([row for row in rows if (row.model, row.callers) == (model, callers)])
                for callers in sorted({row.callers for row in rows})
            }
            for model in dict.fromkeys(row.model for row in rows)
        }
        return {"rungs": [asdict(row) for row in rows], "qps_rung_5_over_0": gains, "failed": self.failed}

    def _agreements(self) -> dict[int, float]:
        """Top-1 agreement of each rung's answers, with real weights and without load."""
        launch, files = self._launch(self.args.check_model, "default"), mix_images(MIX)
        self._say(f"answers of {launch.model} on every rung, against torchvision v2 and float32 on the CPU")
        with Crew(self.rungs, launch) as crew, ThreadPoolExecutor(len(self.rungs)) as pool:
            checked = {rung: pool.submit(lambda rung: self._answers(crew, rung, files), rung) for rung in self.rungs}
            expected = reference_top1(load_model(launch.model), files)
            found = {rung.number: future.result() for rung, future in checked.items()}
        return {number: agreement(labels, expected) for number, labels in found.items() if labels}

    def _answers(self, crew: Crew, rung: Rung, files: Sequence[bytes]) -> list[int]:
        try:
            with crew.take(rung) as worker:
                return served_top1(worker.target, files)
        except _FAILURES as error:
            self._fail(f"answers of rung {rung.number}", error)
            return []

    def _climb(self, bench: Bench, crew: Crew) -> list[Row]:
        self._say(crew.launch.model)
        rows: list[Row] = []
        for rung in self.rungs:
            rows += self._step(bench, crew, rung, crew.launch)
        if rows:
            report.print_rows(self.console, rows)
        return rows

    def _step(self, bench: Bench, crew: Crew, rung: Rung, launch: Launch) -> list[Row]:
        rows: list[Row] = []
        try:
            with crew.take(rung) as worker:
                self.device_name = _device_name(worker)
                measured = bench.measure(worker, rung, launch)
                rows = [replace(row, top1_agreement=self.agreed.get(rung.number)) for row in measured]
        except _FAILURES as error:
            self._fail(f"{launch.model}, rung {rung.number}", error)
        for row in rows:
            busy = "" if row.gpu_busy is None else f", GPU busy {100 * row.gpu_busy:.0f}%"
            self._say(f"  {rung.number} {rung.name}, {report.callers_text(row.callers)}: {row.qps:.1f} QPS{busy}")
        return rows

    def _launch(self, model: str, weights: str) -> Launch:
        args = self.args
        return Launch(model, weights, self.device, args.batch_size, args.frontends, args.server_args)

    def _fail(self, what: str, error: Exception) -> None:
        self.failed[what] = str(error)
        self.console.print(f"[red]{what} failed:[/]")
        self.console.print(str(error), markup=False)

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False)


def _device_name(worker: Worker) -> str:
    with Client(worker.target) as client:
        return client.model().device


def _timing(args: argparse.Namespace) -> Timing:
    return Timing(args.warmup_seconds, args.seconds, args.profile_batches, args.profile_seconds)
