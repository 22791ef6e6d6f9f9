"""`make streams`: what an image costs a frontend in a stream, against a call of its own.

    python -m bench.streams [--rounds 5] [--seconds 6] [-- SERVER SETTINGS]

The engine computes nothing and images are not decoded, so that what remains is the frontend: gRPC, admission, slots,
messages. Single calls and streams take turns, over as many connections and with as many images under way. The figure
is CPU time of the frontends per image, so that callers on the same cores do not count. Then both once more with decode,
without a target. The last line printed is the record, in JSON.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.console import finish, running_service
from bench.generator import Generator, Plan
from bench.mix import MIXES
from bench.record import machine, new_record
from bench.service import Service, ServiceError, with_own_ports
from bench.summary import spread

TARGET = 1.8
_WARM_UP_S = 1.5
_WAYS = ("unary", "stream")
_CASES = {"no decode": ("--null-engine", "--skip-decode"), "decode": ("--null-engine",)}


@dataclass(frozen=True, slots=True)
class Pace:
    """One way to send images, measured.

    Attributes:
        img_s: images answered a second.
        cpu_ms: CPU time of all frontends for an image, in milliseconds.
        cores: that the frontends used.
    """

    img_s: float
    cpu_ms: float
    cores: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both ways; 0 if they could be measured, whether the target was met or not, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    conditions = {"machine": machine()} | {key: value for key, value in vars(args).items() if key != "no_record"}
    console.print(" · ".join(f"{name.replace('_', ' ')}: {value}" for name, value in conditions.items()))
    try:
        cases = {case: _measure(console, args, case, flags) for case, flags in _CASES.items()}
    except (ServiceError, Invalid) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    results = {case: summarize(rounds) for case, rounds in cases.items()}
    console.print(_table(results))
    found = {"target": TARGET, "met": results["no decode"]["ratio"]["median"] >= TARGET}
    finish(console, new_record("streams", "cpu", conditions, results | found), keep=not args.no_record)
    return 0


class Invalid(Exception):
    """Calls failed: whatever was measured means nothing."""


def summarize(rounds: Sequence[dict[str, Pace]]) -> dict[str, Any]:
    """Both ways over all rounds, and how many times more images a stream carries with the same CPU time."""
    ratios = [pair["unary"].cpu_ms / pair["stream"].cpu_ms for pair in rounds]
    columns: dict[str, Any] = {"ratio": asdict(spread(ratios))}
    for way in _WAYS:
        for name in ("img_s", "cpu_ms", "cores"):
            columns[f"{way}_{name}"] = asdict(spread([getattr(pair[way], name) for pair in rounds]))
    return columns


def _measure(console: Console, args: argparse.Namespace, case: str, flags: Sequence[str]) -> list[dict[str, Pace]]:
    sizes = ("--slots", str(args.connections * args.in_flight + 8), "--stream-window", str(args.in_flight))
    server_args = with_own_ports([*flags, *sizes, "--log-level", "warning", *args.server_args])
    with running_service(console, server_args) as service, Generator(args.mix) as generator:
        plan = Plan(
            service.target,
            args.mix,
            args.connections * args.in_flight,
            warmup_s=_WARM_UP_S,
            seconds=args.seconds,
            connections=args.connections,
        )
        rounds = track(range(args.rounds), f"single calls and streams by turns, {case}", console=console)
        return [{way: _pace(generator, replace(plan, way=way), service) for way in _WAYS} for _ in rounds]


def _pace(generator: Generator, plan: Plan, service: Service) -> Pace:
    load = generator.run(plan, lambda: _frontend_cpu_s(service))
    answered = len(load.samples)
    if load.errors or not answered:
        raise Invalid(f"{plan.way}: {answered} answers, errors: {dict(load.errors)}\n{service.log_tail()}")
    return Pace(load.img_s, 1e3 * load.server_cpu_s / answered, load.server_cpu_s / load.seconds)


def _frontend_cpu_s(service: Service) -> float:
    """Of the frontends; of the one process in the embedded form, whose engine does next to nothing."""
    used = service.cpu_by_process()
    frontends = [cpu_s for name, cpu_s in used.items() if name.startswith("frontend-")]
    return sum(frontends or used.values())


def _table(results: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Streams against single calls, medians", title_justify="left", box=None)
    for name in (
        "",
        "img/s",
        "frontend CPU ms an image",
        "frontend cores",
        "images per CPU time, against single calls",
    ):
        table.add_column(name, justify="right" if name else "left")
    for row in _rows(results):
        table.add_row(*row)
    return table


def _rows(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for case, found in results.items():
        ratio = found["ratio"]
        for way in _WAYS:
            figures = [found[f"{way}_{name}"]["median"] for name in ("img_s", "cpu_ms", "cores")]
            versus = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if way == "stream" else ""
            yield (f"{way}, {case}", f"{figures[0]:,.0f}", f"{figures[1]:.3f}", f"{figures[2]:.2f}", versus)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.streams", description="Streams against single calls.")
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="how often both ways take turns (default 5)")
    add("--seconds", type=float, default=6.0, help="length of each measurement, s (default 6)")
    add("--mix", choices=tuple(MIXES), default="small", help="which files (default small)")
    add("--connections", type=int, default=4, help="connections, in a stream one stream each (default 4)")
    add("--in-flight", type=int, default=32, help="images under way on each connection (default 32)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
