"""`make bench`: how fast the service is, as its callers see it, and where each millisecond goes.

    python -m bench.load [--scenario single|closed] [--callers 16] [--mix imagenet] [-- SERVER SETTINGS]

Starts the server as a user would, or drives the one at `--target`. `closed` keeps `--callers` calls under way at all
times; `single` is one caller. The last line printed is the record, in JSON.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.bare import Bare
from bench.console import finish, running_service
from bench.generator import Generator, Load, Plan
from bench.mix import MIXES, mean_bytes, mix_images
from bench.record import machine, new_record
from bench.service import ServiceError
from bench.summary import batch_fill, latency, stage_means, stages_gap_ms
from bench.usage import Usage
from pipeline.cpus import available_cpus
from warmlane.client import Client
from warmlane.errors import WarmlaneError
from warmlane.results import ModelInfo

_BARE_SECONDS = 2.0
# The stages come as float32 milliseconds: what is lost in rounding is far below this.
_LARGEST_GAP_MS = 0.05


@dataclass(frozen=True, slots=True)
class Driven:
    """The service under load.

    Attributes:
        cpu_by_process, rss_bytes: what it has used so far; None for a service that somebody else started.
    """

    target: str
    model: ModelInfo
    cpu_by_process: Callable[[], dict[str, float]] | None = None
    rss_bytes: Callable[[], float] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load test; 0 if it is valid, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    try:
        ceiling = {} if args.target else measure_ceiling(console, args.server_args, args.mix)
        with _driven(console, args) as service, Generator(args.mix, args.processes) as generator:
            runs = [_run(console, plan, service, generator, ceiling, args) for plan in _plans(args, service.target)]
    except (ServiceError, WarmlaneError) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    return 0 if all(runs) else 1


def _run(
    console: Console,
    plan: Plan,
    service: Driven,
    generator: Generator,
    ceiling: dict[str, float],
    args: argparse.Namespace,
) -> bool:
    """One measurement, told and recorded; whether it is valid."""
    conditions = _conditions(plan, service.model, args)
    _print_conditions(console, conditions, ceiling)
    usage = Usage(service.cpu_by_process or dict)
    with console.status(f"{plan.warmup_s:g} s warm-up, {plan.seconds:g} s measured"):
        load = generator.run(plan, usage.cpu_seconds)
    results = summarize(load, service, usage) | ceiling
    _print_results(console, load, results)
    record = new_record(f"load-{args.scenario}", service.model.device, conditions, results)
    finish(console, record, keep=not args.no_record)
    return bool(results["valid"])


def measure_ceiling(console: Console, server_args: Sequence[str], mix: str) -> dict[str, float]:
    """What the machine could do at best, measured before the service starts.

    Returns:
        `bare_img_s`: the forward alone, at the full batch. `bare_decode_ms`: of one thread, for an image.
        `ceiling_img_s`: both on the same cores, if gRPC, callers and all the rest cost nothing. Empty for a GPU.
    """
    with console.status("measuring the ceiling: the bare forward and the decoder"), Bare(server_args, mix) as bare:
        batch_size = bare.batch_size()
        if not batch_size:
            return {}
        img_s = 1e3 * batch_size / bare.forward_ms(batch_size, _BARE_SECONDS)
        decode_ms = bare.decode_ms(_BARE_SECONDS)
    seconds_per_image = 1 / img_s + decode_ms / 1e3 / available_cpus()
    return {"bare_img_s": img_s, "bare_decode_ms": decode_ms, "ceiling_img_s": 1 / seconds_per_image}


def summarize(load: Load, service: Driven, usage: Usage | None = None) -> dict[str, Any]:
    """The results of one run, for the record."""
    results: dict[str, Any] = {"img_s": load.img_s, **asdict(latency(load.samples))}
    results["stages_ms"] = stage_means(load.samples)
    results["batch_fill"] = batch_fill(load.samples)
    results["generator_cpu_percent"] = 100 * load.cpu_s / load.seconds
    results["generator_valid"] = load.too_slow == 0
    if usage and service.rss_bytes:
        if by_process := usage.percent_of(load.seconds):
            results["cpu_percent_of"] = by_process
        results["server_cpu_percent"] = 100 * load.server_cpu_s / load.seconds
        results["rss_mib"] = service.rss_bytes() / 2**20
    gap_ms = stages_gap_ms(load.samples)
    results |= {"calls": len(load.samples), "errors": dict(load.errors), "stages_gap_ms": gap_ms}
    results["valid"] = not load.unexpected and len(load.samples) > 0 and gap_ms <= _LARGEST_GAP_MS
    return results


@contextlib.contextmanager
def _driven(console: Console, args: argparse.Namespace) -> Iterator[Driven]:
    if args.target:
        yield Driven(args.target, _model(args.target))
        return
    with running_service(console, args.server_args) as service:
        yield Driven(service.target, _model(service.target), service.cpu_by_process, service.rss_bytes)


def _model(target: str) -> ModelInfo:
    with Client(target) as client:
        return client.model()


def _plans(args: argparse.Namespace, target: str) -> Iterator[Plan]:
    """One for each number of callers."""
    for callers in [1] if args.scenario == "single" else args.callers:
        yield Plan(
            target,
            args.mix,
            callers,
            min(args.processes, callers),
            args.warmup_seconds,
            args.seconds,
            connections=args.connections,
            way=args.calls,
        )


def _conditions(plan: Plan, model: ModelInfo, args: argparse.Namespace) -> dict[str, Any]:
    files = mix_images(plan.mix)
    return {
        "scenario": args.scenario,
        "mix": plan.mix,
        "files": len(files),
        "mean_file_bytes": mean_bytes(files),
        "callers": plan.callers,
        "generator_processes": plan.processes,
        "calls": plan.way,
        "connections": plan.processes * plan.connections,
        "warmup_s": plan.warmup_s,
        "seconds": plan.seconds,
        "model": model.name,
        "runs_on": f"{model.device}, {model.dtype}, {model.execution}",
        "batch_size": model.batch_size,
        "server_args": list(args.server_args),
        "generator_on_the_same_machine": not args.target,
    }


def _print_conditions(console: Console, conditions: dict[str, Any], ceiling: dict[str, float]) -> None:
    table = Table(title="Conditions", title_justify="left", show_header=False, box=None)
    for name, value in ({"machine": machine()} | conditions).items():
        table.add_row(name.replace("_", " "), f"{value:,.0f}" if isinstance(value, float) else str(value))
    console.print(table)
    if ceiling:
        console.print(
            f"Ceiling: {ceiling['bare_img_s']:.1f} img/s by the forward alone, {ceiling['ceiling_img_s']:.1f} with "
            f"{ceiling['bare_decode_ms']:.2f} ms of decode on the same cores; gRPC and callers need some too.\n"
        )
    else:
        console.print("Ceiling: not measured; that needs a CPU server of this run's own that leaves no work out.\n")


def _print_results(console: Console, load: Load, results: dict[str, Any]) -> None:
    table = Table(title="Results", title_justify="left", show_header=False, box=None)
    for name, value, unit in _rows(results):
        table.add_row(name, value, unit)
    console.print(table)
    if not results["generator_valid"]:
        console.print(f"[yellow]{load.too_slow} generator processes were busy throughout: more --processes[/]")
    if not results["valid"]:
        console.print(f"[red]The run is invalid:[/] errors {results['errors']}, {results['calls']} answers")


def _rows(results: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "throughput", f"{results['img_s']:.1f}", "img/s"
    if "ceiling_img_s" in results:
        yield "  of the ceiling", f"{results['img_s'] / results['ceiling_img_s']:.2f}", ""
    for name in ("p50", "p90", "p99", "max"):
        yield f"latency {name}", f"{results[f'{name}_ms']:.2f}", "ms"
    for stage, mean_ms in results["stages_ms"].items():
        yield f"  {stage}", f"{mean_ms:.2f}", "ms, mean"
    yield "batch fill", f"{results['batch_fill']:.2f}", "images, mean"
    yield "generator CPU", f"{results['generator_cpu_percent']:.0f}", "% of a core"
    if "rss_mib" in results:
        yield "server CPU", f"{results['server_cpu_percent']:.0f}", "% of a core"
        for process, percent in results.get("cpu_percent_of", {}).items():
            yield f"  {process}", f"{percent:.0f}", "% of a core"
        yield "server memory", f"{results['rss_mib']:.0f}", "MiB resident"
    yield "answers", str(results["calls"]), ""
    for status, count in results["errors"].items():
        yield f"  {status}", str(count), "errors"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.load", description="Load test of a warmlane server.")
    add = parser.add_argument
    add("--target", metavar="HOST:PORT", help="a server that runs already (default: one is started and stopped)")
    add("--scenario", choices=("closed", "single"), default="closed", help="many callers or one (default closed)")
    add(
        "--callers",
        type=_counts,
        default=[16],
        metavar="N[,N...]",
        help="calls under way at all times in `closed`; several are measured one after the other (default 16)",
    )
    add("--processes", type=_count, default=1, help="processes that the callers are spread over (default 1)")
    add(
        "--calls",
        choices=("client", "unary", "stream"),
        default="client",
        help="how to call: as users do, or encoded beforehand, which costs the callers less (default client)",
    )
    add("--connections", type=_count, default=1, help="connections of each process (default 1)")
    add("--seconds", type=float, default=10.0, help="length of the measurement, s (default 10)")
    add("--warmup-seconds", type=float, default=3.0, help="calls before it that do not count, s (default 3)")
    add("--mix", choices=tuple(MIXES), default="imagenet", help="which files (default imagenet)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server that is started")
    return parser


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
