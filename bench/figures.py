"""`make figures`: what the service adds to the bare forward in time, memory and start-up, beside the targets.

A machine's speed wanders, by a third where it is shared. So the bare forward and the service take turns, each round of
the service is held against the bare forward just before and just after it, and the median of the rounds is reported
with the lowest and the highest. The last line printed is the record, in JSON.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

from bench.bare import Bare
from bench.console import finish, running_service
from bench.generator import Generator, Load, Plan
from bench.mix import MIXES
from bench.record import machine, new_record
from bench.service import Service, ServiceError
from bench.summary import Samples, batch_fill, column, latency
from bench.targets import (
    FEW_CALLS,
    MANY_CALLS,
    Bares,
    Figure,
    Round,
    figures_table,
    is_quiet,
    memory_figure,
    speed_figures,
    start_figures,
)
from warmlane.client import Client
from warmlane.errors import WarmlaneError

_CALLS_A_STEP = 500
_WARM_UP_S = 1.0
_QUIET_S = 1.0


class Invalid(Exception):
    """Calls failed: whatever was measured means nothing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all figures; 0 if they could be measured, met or short, else 1: also if others kept the CPU busy."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    _print_conditions(console, args)
    try:
        with tempfile.TemporaryDirectory(prefix="warmlane-figures-") as folder:
            figures, details, device = _measure(console, args, folder)
    except (ServiceError, WarmlaneError, Invalid) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    quiet = details["quiet"]
    console.print(figures_table(figures, quiet=quiet))
    if not quiet:
        console.print("[yellow]Others kept the CPU busy between the rounds: measure again when they have finished.[/]")
    results = {"figures": [asdict(figure) | {"met": figure.met if quiet else None} for figure in figures]} | details
    finish(console, new_record("figures", device, _conditions(args), results), keep=not args.no_record)
    return 0 if quiet else 1


def _measure(console: Console, args: argparse.Namespace, folder: str) -> tuple[list[Figure], dict[str, Any], str]:
    server_args = [*args.server_args, "--compile-cache", os.path.join(folder, "compiled")]
    environment = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}
    with running_service(console, server_args, environment=environment) as service:
        cold_s = service.start_s
    with Generator(args.mix) as generator:
        with running_service(console, server_args, environment=environment) as service:
            warm_s = [service.start_s]
            device = _device(service)
            bares, rounds = _alternate(console, args, server_args, service, generator)
        with running_service(console, server_args, environment=environment) as service:
            warm_s.append(service.start_s)
            memory_mib = _memory(console, args, service, generator)
    figures = [*speed_figures(bares, rounds), memory_figure(memory_mib), *start_figures(cold_s, warm_s)]
    details: dict[str, Any] = {"quiet": is_quiet(rounds)}
    details |= {"bares": [asdict(bare) for bare in bares], "rounds": [asdict(each) for each in rounds]}
    return figures, details | {"rss_mib": memory_mib}, device


def _alternate(
    console: Console, args: argparse.Namespace, server_args: Sequence[str], service: Service, generator: Generator
) -> tuple[list[Bares], list[Round]]:
    bares, rounds = [], []
    with Bare(server_args, args.mix) as bare:
        for _ in track(range(args.rounds), "bare forward and service by turns", console=console):
            bares.append(_bares(bare, args.seconds))
            rounds.append(_round(bare, service, generator, args))
        bares.append(_bares(bare, args.seconds))
    return bares, rounds


def _bares(bare: Bare, seconds: float) -> Bares:
    size = bare.batch_size()
    return Bares(1e3 * size / bare.forward_ms(size, seconds), bare.forward_ms(1, seconds / 2))


def _round(bare: Bare, service: Service, generator: Generator, args: argparse.Namespace) -> Round:
    closed = _drive(generator, service, Plan(service.target, args.mix, args.callers, 1, _WARM_UP_S, args.seconds))
    single = _drive(generator, service, Plan(service.target, args.mix, 1, 1, _WARM_UP_S, args.seconds)).samples
    return Round(
        engine_img_s=bare.engine_img_s(args.callers, args.seconds),
        service_img_s=closed.img_s,
        batch_fill=batch_fill(closed.samples),
        server_cpu_percent=100 * closed.server_cpu_s / closed.seconds,
        single_p50_ms=latency(single).p50_ms,
        single_decode_ms=float(np.median(column(single, "decode"))),
        single_rest_ms=_rest_ms(single),
        others_cpu_percent=psutil.cpu_percent(_QUIET_S),
    )


def _rest_ms(single: Samples) -> float:
    return float(np.median(column(single, "latency") - column(single, "decode") - column(single, "forward")))


def _drive(generator: Generator, service: Service, plan: Plan) -> Load:
    load = generator.run(plan, service.cpu_seconds)
    if load.errors or not len(load.samples):
        raise Invalid(f"{len(load.samples)} answers, errors: {dict(load.errors)}\n{service.log_tail()}")
    return load


def _memory(console: Console, args: argparse.Namespace, service: Service, generator: Generator) -> dict[str, float]:
    """Resident memory in MiB after so many calls."""
    plan = Plan(service.target, args.mix, args.callers, 1, 0, 0, _CALLS_A_STEP)
    found = {}
    for calls in track(range(_CALLS_A_STEP, MANY_CALLS + 1, _CALLS_A_STEP), "memory", console=console):
        _drive(generator, service, plan)
        if calls % FEW_CALLS == 0:
            found[str(calls)] = service.rss_bytes() / 2**20
    return found


def _device(service: Service) -> str:
    with Client(service.target) as client:
        return client.model().device


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    chosen = {name: getattr(args, name) for name in ("mix", "callers", "rounds", "seconds", "server_args")}
    return chosen | {"generator_on_the_same_machine": True, "load_average_at_the_end": os.getloadavg()[0]}


def _print_conditions(console: Console, args: argparse.Namespace) -> None:
    others = os.getloadavg()[0]
    console.print(
        f"{machine()}; {args.mix} files, {args.callers} callers, {args.rounds} rounds of {args.seconds:g} s each; "
        f"load average before the start {others:.2f}"
    )
    console.print("Ceiling: the bare forward, measured by turns with the service. This takes some minutes.\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description="The service against its targets.")
    add = parser.add_argument
    add("--mix", choices=tuple(MIXES), default="small", help="which files (default small)")
    add("--callers", type=int, default=16, help="callers that fill the batches (default 16)")
    add("--rounds", type=int, default=5, help="rounds of bare forward and service (default 5)")
    add("--seconds", type=float, default=5.0, help="length of one measurement in a round, s (default 5)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server that is started")
    return parser


if __name__ == "__main__":
    sys.exit(main())
