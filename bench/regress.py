"""`make bench-regress`: whether the service has become slower than what is recorded; exit code 1 if by over 10 %.

    python -m bench.regress [--record] [--rounds 7] [-- SERVER SETTINGS]

A machine's speed wanders from day to day and from minute to minute, so throughput is taken as a ratio to a calibration
loop (`bench.calibration`) that runs by turns with the service, before and after each round. The median of the rounds
counts. `--record` keeps it as what later runs are held against. The last line printed is the record, in JSON.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import track

from bench.calibration import Calibration
from bench.console import conditions_table, finish, running_service
from bench.generator import Generator, Plan
from bench.mix import MIXES
from bench.record import RESULTS, Record, machine, new_record
from bench.service import ServiceError, with_own_ports
from bench.summary import spread
from bench.targets import QUIET_PERCENT
from warmlane.client import Client

MOST_DROP = 0.10
_WARM_UP_S = 1.0
_CALIBRATION_S = 2.0
_PROCESSES = 2
_QUIET_S = 0.5
# What must be the same for two ratios to mean the same.
_SAME = ("machine", "mix", "callers", "model", "server_args")


class Invalid(Exception):
    """Calls failed: whatever was measured means nothing."""


def main(argv: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Measure, and hold it against the record; 1 if it dropped, or could not be measured."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    try:
        record = _measure(console, args)
    except (ServiceError, Invalid) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    if record.figures["others_cpu_percent"] > QUIET_PERCENT:
        console.print("[yellow]Others kept the CPU busy between the rounds: measure again when they have finished.[/]")
    code = 0 if args.record else _judge(console, record, args.against or recorded(results, record.device))
    if args.record:
        for old in results.glob(f"regress_{record.device}_*.json"):
            old.unlink()
        record.write(results)
    finish(console, record, keep=False)
    return code


def recorded(results: Path, device: str) -> Path | None:
    """The newest record of this kind of device; None where there is none."""
    return max(results.glob(f"regress_{device}_*.json"), default=None, key=lambda path: path.name)


def drop(now: Mapping[str, Any], then: Mapping[str, Any]) -> float:
    """By what share the ratio fell; negative where it rose."""
    return 1 - float(now["ratio"]["median"]) / float(then["ratio"]["median"])


def _judge(console: Console, record: Record, against: Path | None) -> int:
    if against is None:
        console.print(f"nothing is recorded for {record.device}: ARGS=--record keeps this run")
        return 0
    then = json.loads(against.read_text())
    for name in _SAME:
        was, is_now = then["conditions"][name], record.conditions[name]
        if was != is_now:
            console.print(f"[red]not comparable:[/] {name} was {was}, is {is_now}")
            return 1
    fell, before, after = drop(record.figures, then["results"]), then["results"]["ratio"], record.figures["ratio"]
    console.print(
        f"images a calibration unit: {_text(before)} recorded {then['date']} ({then['commit']}), {_text(after)} now, "
        f"{-fell:+.1%}"
    )
    if fell <= MOST_DROP:
        console.print(f"[green]no drop of over {MOST_DROP:.0%}[/]")
        return 0
    overlap = after["high"] >= before["low"]
    doubt = "; but the rounds overlap: measure again where it is quiet" if overlap else ""
    console.print(f"[red]slower by {fell:.1%}, more than {MOST_DROP:.0%}[/]{doubt}")
    return 1


def _measure(console: Console, args: argparse.Namespace) -> Record:
    with (
        Calibration() as calibration,
        Generator(args.mix, _PROCESSES) as generator,
        running_service(console, with_own_ports(args.server_args)) as service,
    ):
        with Client(service.target) as client:
            model = client.model()
        conditions = _conditions(args, model.name)
        console.print(conditions_table(conditions))
        plan = Plan(service.target, args.mix, args.callers, _PROCESSES, _WARM_UP_S, args.seconds)
        units_s, img_s, others = [calibration.units_s(_CALIBRATION_S)], [], []
        for _ in track(range(args.rounds), "service and calibration by turns", console=console, transient=True):
            load = generator.run(plan)
            if load.errors or not len(load.samples):
                raise Invalid(f"{len(load.samples)} answers, errors: {dict(load.errors)}\n{service.log_tail()}")
            img_s.append(load.img_s)
            units_s.append(calibration.units_s(_CALIBRATION_S))
            others.append(psutil.cpu_percent(_QUIET_S))
    results = _results(img_s, units_s) | {"others_cpu_percent": max(others)}
    return new_record("regress", model.device, conditions, results)


def _results(img_s: Sequence[float], units_s: Sequence[float]) -> dict[str, Any]:
    figures = {"ratio": ratios(img_s, units_s), "img_s": img_s, "calibration_units_s": units_s}
    return {name: asdict(spread(values)) for name, values in figures.items()} | {"rounds": figures}


def ratios(img_s: Sequence[float], units_s: Sequence[float]) -> list[float]:
    """Each round over the mean of the calibrations before and after it: `units_s` has one more."""
    around = [(before + after) / 2 for before, after in pairwise(units_s)]
    return [images / units for images, units in zip(img_s, around, strict=True)]


def _text(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def _conditions(args: argparse.Namespace, model: str) -> dict[str, Any]:
    chosen = {name: getattr(args, name) for name in ("mix", "callers", "rounds", "seconds", "server_args")}
    return {"machine": machine(), "model": model} | chosen | {"load_average_before": os.getloadavg()[0]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.regress", description="Slower than what is recorded?")
    add = parser.add_argument
    add("--record", action="store_true", help="keep this run as what later ones are held against")
    add("--against", type=Path, metavar="FILE", help="another record (default: the newest of this kind of device)")
    add("--rounds", type=int, default=7, help="rounds (default 7)")
    add("--seconds", type=float, default=4.0, help="length of each, s (default 4)")
    add("--callers", type=int, default=16, help="callers that fill the batches (default 16)")
    add("--mix", choices=tuple(MIXES), default="small", help="which files (default small)")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server that is started")
    return parser


if __name__ == "__main__":
    sys.exit(main())
