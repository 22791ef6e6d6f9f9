"""The scenarios: each measures a session in its way."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.generator import Plan
from bench.load.results import share_within
from bench.load.session import Run, Session
from bench.load.soak import drifts
from bench.load.sweep import Found, Point, highest_rate

# Where latency is still that of a service with room to spare.
_SHARE_OF_PEAK = 0.7
_PEAK_SECONDS = 4.0
# Of fewer calls, p99 is the slowest one.
_CALLS_OF_A_P99 = 100
_LONGEST_STEP_S = 30.0

Told = dict[str, Any]


class Scenarios:
    """Runs scenarios one after the other.

    Args:
        on_run: told of each measurement as it is made.

    Attributes:
        runs: all measurements so far.
        told: what scenarios found beyond their measurements: the sweep's rate, the soak's drifts.
    """

    def __init__(self, session: Session, on_run: Callable[[Run], None] = lambda run: None) -> None:
        self.runs: list[Run] = []
        self.told: Told = {}
        self._on_run = on_run
        self._session = session
        self._options = session.options

    def run(self, name: str) -> None:
        """One scenario, by its name."""
        scenarios: dict[str, Callable[[], object]] = {
            "single": self._single,
            "closed": self._closed,
            "batch": self._batch,
            "stream": self._stream,
            "open": self._open,
            "sweep": self._sweep,
            "soak": self._soak,
        }
        scenarios[name]()

    def _single(self) -> None:
        self._measure("single", "one caller", self._plan(1))

    def _closed(self) -> None:
        for callers in self._options.callers:
            self._measure("closed", _callers(callers), self._plan(callers, way=self._options.calls))

    def _batch(self) -> None:
        images = self._options.batch_images
        callers = max(1, max(self._options.callers) // images)
        plan = self._plan(callers, way="batch", images=images)
        self._measure("batch", f"{_callers(callers)}, {images} images a call", plan)

    def _stream(self) -> None:
        callers = max(self._options.callers)
        self._measure("stream", f"{callers} images under way", self._plan(callers, way="stream"))

    def _open(self) -> None:
        rate = self._options.rate or _SHARE_OF_PEAK * self._peak()
        self._measure("open", f"{rate:.4g} calls a second", self._scheduled(rate))

    def _sweep(self) -> None:
        seeds = itertools.count(1)

        def probe(rate: float, seconds: float = self._options.step_seconds) -> Point:
            seconds = max(seconds, min(_CALLS_OF_A_P99 / rate, _LONGEST_STEP_S))
            plan = replace(self._scheduled(rate), seconds=seconds, seed=next(seeds))
            run = self._measure("sweep", f"{rate:.4g} calls a second", plan, step=True)
            return Point(rate, run.results["within_slo"], bool(run.results["generator_valid"]))

        found = highest_rate(self._peak(), probe, lambda rate: probe(rate, self._options.seconds))
        if found.best:
            # The confirmation came last, and is what the sweep is about.
            self.runs[-1] = replace(self.runs[-1], step=False)
        self.told["slo"] = _told_of(found, self._options.slo_ms)

    def _soak(self) -> None:
        options = self._options
        if options.rate:
            plan, label = self._scheduled(options.rate), f"{options.rate:.4g} calls a second"
        else:
            plan, label = self._plan(max(options.callers), way=options.calls), _callers(max(options.callers))
        run = self._measure("soak", f"{label}, {options.minutes:g} min", replace(plan, seconds=60 * options.minutes))
        self.told["drifts"] = drifts(run.load, run.results)

    def _peak(self) -> float:
        """Images a second that callers who wait can get: of a run that was made, or of a short one."""
        closed = [run for run in self.runs if run.scenario == "closed"]
        if not closed:
            plan = replace(self._plan(max(self._options.callers), way="unary"), seconds=_PEAK_SECONDS)
            closed = [self._measure("closed", f"{_callers(plan.callers)}, a first guess", plan, step=True)]
        return max(run.load.img_s for run in closed)

    def _plan(self, callers: int, **changes: Any) -> Plan:
        return self._session.plan(callers, **changes)

    def _scheduled(self, rate: float) -> Plan:
        processes = self._options.processes
        return self._session.plan(way="unary", rate=rate, processes=processes)

    def _measure(self, scenario: str, label: str, plan: Plan, *, step: bool = False) -> Run:
        run = self._session.measure(scenario, label, plan, step=step)
        if plan.rate:
            within = share_within(run.load.samples, self._options.slo_ms, run.load.due)
            run.results["within_slo"] = within
        self._on_run(run)
        self.runs.append(run)
        return run


def _callers(count: int) -> str:
    return "one caller" if count == 1 else f"{count} callers"


def _told_of(found: Found, slo_ms: float) -> Told:
    best = found.best
    rate = best.rate if best else None
    return {"slo_ms": slo_ms, "rate": rate, "held_back_by_generator": found.held_back}
