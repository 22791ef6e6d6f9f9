"""`make overload`: twice as many calls as can be served, for a minute.

    python -m bench.overload [--seconds 60] [--factor 2] [-- SERVER SETTINGS]

First as many calls as the service can take: its peak. Then calls at scheduled times that do not wait for each other, at
`--factor` times that peak, some with less patience than the queue is long. The model takes its time without the CPU, as
a GPU does, so that callers on the same cores do not slow it down; it also writes down what reached it, and when. The
last line printed is the record, in JSON; exit code 1 if anything did not hold.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.console import checks_table, finish, running_service
from bench.open_loop import Called, Schedule, closed_loop, open_loop
from bench.palette import FLAGS, FORWARD_LOG, FORWARD_MS, forwards
from bench.record import machine, new_record
from bench.service import Service, ServiceError, with_own_ports

_RIGHT = {"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
_WARM_UP_S = 3.0
# A generator that sends later than this loads the service less than it says.
_LARGEST_LAG_MS = 20.0
# The server counts a deadline from when the call came in, which is so much later than when it was sent.
_TRANSIT_S = 0.02
# One in the slots, and at most as long again before admission and behind the forward.
_MOST_QUEUES = 2
# In multiples of the time that a full queue takes: shorter than the queue, about as long, and longer.
_PATIENCES = (0.5, 1.5, 4.0)


@dataclass(frozen=True, slots=True)
class Results:
    """What was measured.

    Attributes:
        peak_img_s: answered a second with as many callers as slots.
        offered_img_s: called a second during overload.
        goodput_img_s: answered in time a second during overload.
        queue_ms: what a full queue takes at the peak.
        p50_ms, p99_ms: of the calls that were answered, from their scheduled time.
        refused_p99_ms: how long the refused waited.
        forwarded, forwarded_late: images that reached a forward, and those whose deadline had passed when it began.
        lag_p99_ms: how late the generator sent, 99th percentile.
    """

    peak_img_s: float
    offered_img_s: float
    goodput_img_s: float
    queue_ms: float
    p50_ms: float
    p99_ms: float
    refused_p99_ms: float
    forwarded: int
    forwarded_late: int
    lag_p99_ms: float
    statuses: dict[str, int]

    @property
    def generator_valid(self) -> bool:
        """Whether the calls were sent when they were due."""
        return self.lag_p99_ms <= _LARGEST_LAG_MS

    def checks(self) -> Iterator[tuple[str, bool, str]]:
        """What must hold: its name, whether it does, and what was found."""
        share = self.goodput_img_s / self.peak_img_s
        yield "goodput is at least 0.90 of the peak", share >= 0.9, f"{share:.2f}"
        bound_ms = _MOST_QUEUES * self.queue_ms
        yield (
            f"p99 of the answered is at most {_MOST_QUEUES} full queues, {bound_ms:.0f} ms",
            self.p99_ms <= bound_ms,
            (f"{self.p99_ms:.0f} ms"),
        )
        yield (
            "no image whose deadline had passed reached a forward",
            not self.forwarded_late,
            (f"{self.forwarded_late} of {self.forwarded:,}"),
        )
        strange = {status: count for status, count in self.statuses.items() if status not in _RIGHT}
        yield "every other call was refused, or told of its deadline", not strange, str(strange or "yes")
        yield (
            f"calls were sent within {_LARGEST_LAG_MS:g} ms of their schedule",
            self.generator_valid,
            (f"p99 {self.lag_p99_ms:.1f} ms"),
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the overload; 0 if everything held, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    conditions: dict[str, Any] = {key: value for key, value in vars(args).items() if key != "no_record"}
    for name, value in ({"machine": machine()} | conditions).items():
        console.print(f"{name.replace('_', ' ')}: {value}", soft_wrap=True)
    try:
        results = _measure(console, args)
    except ServiceError as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    checks = list(results.checks())
    held = all(ok for _, ok, _ in checks)
    console.print(_figures_table(results))
    console.print(checks_table(checks))
    found = asdict(results) | {"generator_valid": results.generator_valid, "held": held}
    finish(console, new_record("overload", "cpu", conditions, found), keep=not args.no_record)
    return 0 if held else 1


def _measure(console: Console, args: argparse.Namespace) -> Results:
    server_args = [*FLAGS, "--slots", str(args.slots), "--max-batch-images", "8", "--log-level", "error"]
    server_args = with_own_ports([*server_args, *args.server_args])
    with tempfile.TemporaryDirectory(prefix="warmlane-overload-") as folder:
        log = Path(folder) / "forwards"
        environment = {FORWARD_MS: str(args.forward_ms), FORWARD_LOG: str(log)}
        with (
            running_service(console, server_args, environment=environment) as service,
            ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        ):
            peak_img_s = _peak(pool, service, args)
            console.print(f"peak: {peak_img_s:.0f} img/s, {args.slots} callers; now {args.factor:g} times that")
            queue_s = args.slots / peak_img_s
            patience_s = tuple(multiple * queue_s for multiple in _PATIENCES)
            open_s = time.monotonic() + _WARM_UP_S
            schedule = Schedule(service.target, args.factor * peak_img_s, open_s, args.seconds, patience_s)
            called = pool.submit(open_loop, schedule).result()
        return summarize(called, forwards(log), schedule, peak_img_s, queue_s)


def _peak(pool: ProcessPoolExecutor, service: Service, args: argparse.Namespace) -> float:
    from_s = time.monotonic() + _WARM_UP_S
    to_s = from_s + args.peak_seconds
    called = pool.submit(closed_loop, service.target, args.slots, to_s).result()
    answered: int = sum(each.status == "OK" and from_s <= each.ended_s < to_s for each in called)
    seconds: float = args.peak_seconds
    return answered / seconds


def summarize(
    called: Sequence[Called],
    forwarded: Iterable[tuple[int, float]],
    schedule: Schedule,
    peak_img_s: float,
    queue_s: float,
) -> Results:
    """The figures of an overload.

    Args:
        forwarded: colour of each image that reached a forward, and when that began, in seconds of CLOCK_MONOTONIC.
        queue_s: what a full queue takes.
    """
    seen = [(colour, began_s) for colour, began_s in forwarded if began_s >= schedule.open_s]
    waits = {
        status: [1e3 * (each.ended_s - each.due_s) for each in called if each.status == status]
        for status in ("OK", "RESOURCE_EXHAUSTED")
    }
    return Results(
        peak_img_s=peak_img_s,
        offered_img_s=len(called) / schedule.seconds,
        goodput_img_s=len(waits["OK"]) / schedule.seconds,
        queue_ms=1e3 * queue_s,
        p50_ms=_percentile(waits["OK"], 50),
        p99_ms=_percentile(waits["OK"], 99),
        refused_p99_ms=_percentile(waits["RESOURCE_EXHAUSTED"], 99),
        forwarded=len(seen),
        forwarded_late=sum(began_s > deadline_s + _TRANSIT_S for began_s, deadline_s in _deadlines(called, seen)),
        lag_p99_ms=_percentile([1e3 * (each.sent_s - each.due_s) for each in called], 99),
        statuses=dict(Counter(each.status for each in called).most_common()),
    )


def _deadlines(called: Sequence[Called], seen: Iterable[tuple[int, float]]) -> Iterator[tuple[float, float]]:
    """When each forward began, and the deadline of its call: the last one of that colour that was sent before."""
    calls = defaultdict(list)
    for each in sorted(called, key=lambda each: each.sent_s):
        calls[each.colour].append(each)
    for colour, began_s in seen:
        before = bisect_right(calls[colour], began_s, key=lambda each: each.sent_s)
        if before:
            yield began_s, calls[colour][before - 1].deadline_s


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def _figures_table(results: Results) -> Table:
    table = Table(title="Overload", title_justify="left", show_header=False, box=None)
    table.add_row("peak", f"{results.peak_img_s:.0f}", "img/s, as many callers as slots")
    table.add_row("offered", f"{results.offered_img_s:.0f}", "calls/s, by schedule")
    table.add_row("goodput", f"{results.goodput_img_s:.0f}", "img/s answered in time")
    table.add_row("latency p50", f"{results.p50_ms:.1f}", "ms from the schedule, of the answered")
    table.add_row("latency p99", f"{results.p99_ms:.1f}", f"ms; a full queue takes {results.queue_ms:.0f}")
    table.add_row("refusal p99", f"{results.refused_p99_ms:.1f}", "ms from the schedule to RESOURCE_EXHAUSTED")
    for status, count in results.statuses.items():
        table.add_row(f"  {status}", f"{count:,}", "calls")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.overload", description="More calls than can be served.")
    add = parser.add_argument
    add("--seconds", type=float, default=60.0, help="length of the overload, s (default 60)")
    add("--peak-seconds", type=float, default=10.0, help="length of the measurement of the peak, s (default 10)")
    add("--factor", type=float, default=2.0, help="calls a second, in multiples of the peak (default 2)")
    add("--forward-ms", type=float, default=50.0, help="how long the model takes for a batch, ms (default 50)")
    add("--slots", type=int, default=64, help="most images in flight (default 64)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
