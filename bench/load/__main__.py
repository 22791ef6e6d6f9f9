"""`make bench`: how fast the service is, as its callers see it, and where each millisecond goes.

    python -m bench.load [--scenario single,closed,sweep] [--images DIR] [-- SERVER SETTINGS]

Starts the server as a user would, or drives the one at `--target`. Every answer is checked while the load runs. Ends
with a table, a record in bench/results, one HTML file beside it, and the record as one line of JSON. The exit code is 1
if a measurement is invalid: wrong answers, unexpected errors, or a generator that missed its rate by over 2 %.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.bare import Bare
from bench.console import conditions_table, finish
from bench.load.options import Options, parse
from bench.load.reference import Reference, own_reference
from bench.load.results import is_quiet
from bench.load.scenarios import Scenarios
from bench.load.session import Run, Session, session
from bench.load.tables import print_run, print_summary
from bench.mix import mean_bytes, mix_images
from bench.record import RESULTS, Record, machine, new_record
from bench.report.page import write_report
from bench.service import ServiceError
from pipeline.cpus import available_cpus
from warmlane.errors import WarmlaneError

_BARE_SECONDS = 2.0
_CALIBRATION_SECONDS = 1.0
# How gRPC itself refuses calls beyond the server's --max-calls.
_OVERWHELMED = {"UNAVAILABLE", "CANCELLED"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the load test; 0 if all of it is valid, else 1."""
    options = parse(argv)
    console = Console(highlight=False)
    try:
        own = None if options.target else _own_reference(console, options)
        ceiling = {} if options.target or options.no_ceiling else measure_ceiling(console, options)
        with session(console, options, own) as ready:
            _print_conditions(console, conditions(ready), ceiling, ready.unseen)
            units_s = [ready.calibration.units_s(_CALIBRATION_SECONDS)]
            scenarios = Scenarios(ready, lambda run: print_run(console, run))
            for name in options.scenario:
                scenarios.run(name)
            units_s.append(ready.calibration.units_s(_CALIBRATION_SECONDS))
            record = to_record(ready, scenarios, ceiling | {"calibration_units_s": units_s})
    except (ServiceError, WarmlaneError, ValueError) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    print_summary(console, record.figures)
    _write_report(console, record, options)
    finish(console, record, keep=not options.no_record)
    return 0 if record.figures["valid"] else 1


def _own_reference(console: Console, options: Options) -> Reference:
    with console.status("finding out what is to be answered"):
        return own_reference(options.server_args, options.files)


def measure_ceiling(console: Console, options: Options) -> dict[str, float]:
    """What the machine could do at best, measured before the service starts.

    Returns:
        `bare_img_s`: the forward alone, at the full batch. `bare_decode_ms`: of one thread, for an image.
        `ceiling_img_s`: both on the same cores, if gRPC, callers and all the rest cost nothing. Empty for a GPU.
    """
    with (
        console.status("measuring the ceiling: the bare forward and the decoder"),
        Bare(options.server_args, options.files) as bare,
    ):
        batch_size = bare.batch_size()
        if not batch_size:
            return {}
        img_s = 1e3 * batch_size / bare.forward_ms(batch_size, _BARE_SECONDS)
        decode_ms = bare.decode_ms(_BARE_SECONDS)
    seconds_per_image = 1 / img_s + decode_ms / 1e3 / available_cpus()
    return {"bare_img_s": img_s, "bare_decode_ms": decode_ms, "ceiling_img_s": 1 / seconds_per_image}


def conditions(ready: Session) -> dict[str, Any]:
    """Everything that was chosen."""
    options, model, reference = ready.options, ready.model, ready.reference
    files = mix_images(options.files)
    return {
        "machine": machine(),
        "scenario": ",".join(options.scenario),
        "mix": f"folder {options.images.name}" if options.images else options.mix,
        "files": len(files),
        "files_refused": reference.refused,
        "mean_file_bytes": mean_bytes(files),
        "answers_held_against": reference.source,
        "swapped_answers_noticed": reference.swaps_noticed,
        "generator_processes": options.processes,
        "connections": options.processes * options.connections_each,
        "warmup_s": options.warmup_seconds,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "slo_ms": options.slo_ms,
        "model": model.name,
        "runs_on": f"{model.device}, {model.dtype}, {model.execution}",
        "batch_size": model.batch_size,
        "server_args": list(options.server_args),
        "generator_on_the_same_machine": not options.target,
        "load_average_before": os.getloadavg()[0],
        "not_seen": ready.unseen,
    }


def to_record(ready: Session, scenarios: Scenarios, more: dict[str, Any]) -> Record:
    """Of all measurements; the figures of the best one stand on top."""
    runs = scenarios.runs
    names = ready.options.scenario
    bench = f"load-{names[0]}" if len(names) == 1 else "load"
    results = _best(scenarios)
    others = [run.results["others_cpu_percent"] for run in runs if "others_cpu_percent" in run.results]
    results |= {"valid": _all_valid(runs), "quiet": is_quiet(max(others, default=0.0)), **scenarios.told, **more}
    if scenarios.told.get("slo", {}).get("held_back_by_generator"):
        results["valid"] = False
    results["runs"] = [
        {"scenario": run.scenario, "label": run.label, "step": run.step, "callers": run.plan.callers, **run.results}
        for run in runs
    ]
    return new_record(bench, ready.model.device, conditions(ready), results)


def _all_valid(runs: Sequence[Run]) -> bool:
    """A step may miss its rate or overwhelm the service, since that only ends a search, but not be answered wrongly."""
    return all(run.valid or (run.step and run.load.unexpected.keys() <= _OVERWHELMED) for run in runs)


def _best(scenarios: Scenarios) -> dict[str, Any]:
    """The figures of the measurement with the most images a second, its own rounds and courses aside."""
    runs = [run for run in scenarios.runs if not run.step] or scenarios.runs
    best = max(runs, key=lambda run: (run.valid, run.load.img_s))
    kept = {name: value for name, value in best.results.items() if name not in ("series", "gpu_series")}
    return {"of": f"{best.scenario}, {best.label}"} | kept


def _print_conditions(console: Console, chosen: dict[str, Any], ceiling: dict[str, float], unseen: list[str]) -> None:
    console.print(conditions_table({name: value for name, value in chosen.items() if name != "not_seen"}))
    for line in unseen:
        console.print(f"Not seen: {line}", markup=False)
    if ceiling:
        console.print(
            f"Ceiling: {ceiling['bare_img_s']:.1f} img/s by the forward alone, {ceiling['ceiling_img_s']:.1f} with "
            f"{ceiling['bare_decode_ms']:.2f} ms of decode on the same cores; gRPC and callers need some too.\n"
        )
    else:
        console.print("Ceiling: not measured; that needs a CPU server of this run's own that leaves no work out.\n")


def _write_report(console: Console, record: Record, options: Options) -> None:
    path = options.report
    if path is None and not options.no_record:
        path = RESULTS / f"{record.stem}.html"
    if path:
        write_report(record.content(), Path(path))
        console.print(f"report: {os.path.relpath(path)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
