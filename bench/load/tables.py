"""The load test on the terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.load.results import MOST_MISSED
from bench.load.session import Run

_BAR = 30
# What the terms may miss of the callers' wall.
_TOLERANCE = 0.05


def print_run(console: Console, run: Run) -> None:
    """One measurement; a step of a search in one line."""
    results = run.results
    if run.step:
        within = f", {results['within_slo']:.1%} within the limit" if "within_slo" in results else ""
        found = f"{results['img_s']:.1f} img/s, p99 {results['p99_ms']:.1f} ms{within}"
        console.print(f"{run.scenario}, {run.label}: {found}")
        for line in _complaints(results):
            console.print(f"  [yellow]{line}[/]")
        return
    console.print(f"\n[bold]{run.scenario}[/], {run.label}")
    console.print(_figures(results))
    console.print(formula_table(results["terms_ms"]))
    for line in formula_lines(results):
        console.print(f"  {line}", soft_wrap=True)
    for line in _complaints(results):
        console.print(f"  [red]{line}[/]", soft_wrap=True)


def print_summary(console: Console, results: Mapping[str, Any]) -> None:
    """All measurements side by side, and what the scenarios found beyond them."""
    table = Table(title="\nAll measurements", title_justify="left", box=None)
    table.add_column("")
    for name in ("img/s", "p50 ms", "p99 ms", "fill", "busy", "server", "callers"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("valid")
    for run in results["runs"]:
        if not run["step"]:
            table.add_row(*_summary_row(run))
    console.print(table)
    for line in told_lines(results):
        console.print(line, soft_wrap=True)


def told_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """What the sweep and the soak found, in words, and whether the machine was disturbed."""
    if not results["quiet"]:
        most = max(run["others_cpu_percent"] for run in results["runs"] if "others_cpu_percent" in run)
        yield f"Other programs took up to {most:.0f} % of a core meanwhile: these figures are not the service's best."
    if slo := results.get("slo"):
        held_back = "; above it the generator could not keep the rate" if slo["held_back_by_generator"] else ""
        rate = "no rate" if slo["rate"] is None else f"{slo['rate']:.1f} images a second"
        yield f"Highest rate whose p99 stays within {slo['slo_ms']:g} ms: {rate}{held_back}."
    for name, drift in results.get("drifts", {}).items():
        yield (
            f"{name.replace('_', ' ')}: {drift['first']:,.1f} in the first fifth, {drift['last']:,.1f} in the last "
            f"({drift['percent']:+.1f} %), {drift['per_hour']:+,.1f} an hour after the first fifth"
        )


def formula_table(terms: Mapping[str, float]) -> Table:
    """Where the mean request's time went; the terms sum to its wall time."""
    wall_ms = sum(terms.values())
    table = Table(title="wall of a request, mean", title_justify="left", show_header=False, box=None)
    table.add_row("", f"{wall_ms:.2f}", "ms")
    for sign, (name, mean_ms) in zip("=" + "+" * len(terms), terms.items(), strict=False):
        share = mean_ms / wall_ms if wall_ms else 0.0
        table.add_row(f"  {sign} {name}", f"{mean_ms:.2f}", f"{share:4.0%} [blue]{'█' * round(_BAR * share)}[/]")
    return table


def formula_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """What belongs to the formula: whether it adds up, and how busy the engine is."""
    if accounted := results.get("accounted"):
        yield f"the terms of all requests are {accounted:.3f} of the callers' wall time"
    busy, useful = results["lane_busy"], results["useful_busy"]
    if busy is not None and busy == busy:
        padded = f", {useful:.0%} on real images" if useful != busy else ""
        yield f"engine busy {busy:.0%} of the wall{padded}; {results['queueing']:.1f} images wait for it on average"
    if gpu := results.get("nvml"):
        yield (
            f"NVML: GPU {gpu['util_percent']:.0f} %, memory bandwidth {gpu['memory_percent']:.0f} %, "
            f"SM clock {gpu['sm_clock_mhz']:.0f} MHz, {gpu['power_w']:.0f} W"
        )


def _figures(results: Mapping[str, Any]) -> Table:
    table = Table(show_header=False, box=None)
    for name, value, unit in _rows(results):
        table.add_row(name, value, unit)
    return table


def _rows(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "rate" in results:
        missed, late_ms = 100 * results["missed"], results["lag_p99_ms"]
        yield "scheduled", f"{results['rate']:.1f}", f"calls/s; {missed:.1f} % missed, sent {late_ms:.1f} ms late (p99)"
    rounds = results["rounds"]["img_s"]
    spread = f"{min(rounds):.1f} to {max(rounds):.1f} in {len(rounds)} rounds"
    yield "throughput", f"{results['img_s']:.1f}", f"img/s; {spread}"
    percentiles = [f"{results[f'{name}_ms']:.1f}" for name in ("p50", "p90", "p99", "max")]
    yield "latency", " ".join(percentiles), "ms: p50 p90 p99 max"
    yield "batch fill", f"{results['batch_fill']:.2f}", "images, mean"
    if checked := results["checked"]:
        yield "top-1 agrees", f"{results['top1_agreement']:.2%}", f"of {checked:,} answers; wrong ones are errors"
    yield "generator CPU", f"{results['generator_cpu_percent']:.0f}", "% of a core"
    for process, percent in results.get("cpu_percent_of", {}).items():
        yield f"{process} CPU", f"{percent:.0f}", f"% of a core; {results['rss_mib_of'].get(process, 0):.0f} MiB"
    if "others_cpu_percent" in results:
        yield "others' CPU", f"{results['others_cpu_percent']:.0f}", "% of a core, by all else on this machine"
    for status, count in results["errors"].items():
        yield f"  {status}", f"{count:,}", "images not answered"


def _complaints(results: Mapping[str, Any]) -> Iterator[str]:
    if not results["generator_valid"] and "rate" in results:
        yield f"invalid: the generator missed its rate by {results['missed']:.1%}, more than {MOST_MISSED:.0%}"
    elif not results["generator_valid"]:
        yield "the callers' processes were busy throughout and may have held the service back: more --processes"
    elif not results["valid"]:
        yield f"invalid: {results['calls']} answers, errors {results['errors']}"
    if abs(results.get("accounted", 1.0) - 1) > _TOLERANCE:
        yield "the terms are not the callers' wall time: they waited for something else too, or the run is too short"


def _summary_row(run: Mapping[str, Any]) -> Iterator[str]:
    yield f"{run['scenario']}, {run['label']}"
    yield from (f"{run[name]:.1f}" for name in ("img_s", "p50_ms", "p99_ms", "batch_fill"))
    yield _percent(run["lane_busy"], 100)
    yield _percent(run.get("server_cpu_percent"))
    yield _percent(run["generator_cpu_percent"])
    yield "yes" if run["valid"] else "[red]no[/]"


def _percent(value: float | None, times: float = 1.0) -> str:
    return "-" if value is None or value != value else f"{times * value:.0f}%"
