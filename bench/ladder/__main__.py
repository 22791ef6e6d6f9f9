"""`make ladder`: the incident rebuilt and mended, one habit a rung, over real gRPC with real JPEGs.

    python -m bench.ladder [--models resnet50,efficientnet_b0] [--rungs 0,1,2,3,4,5,6,7] [-- SERVER SETTINGS]

Each rung is one process that owns the device, on the last with frontends before it, driven by one closed-loop caller
(the incident's arithmetic: QPS = 1000 / wall ms) and by many. What its GPU does is profiled inside that process under
the same load, after the pace was taken without the profiler. The last line printed is the record, in JSON.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from bench.console import conditions_table, finish
from bench.ladder.climb import Ladder
from bench.ladder.rungs import RUNGS, SEVERAL, pick_rungs
from bench.ladder.workers import MIX, suggested_frontends
from bench.mix import mean_bytes, mix_images
from bench.record import machine, new_record
from bench.rungs import rungs_table
from pipeline.cpus import available_cpus
from pipeline.lanes import resolve_device
from pipeline.model import ModelError
from pipeline.options import DEFAULT_MODEL
from server.shares import share_of_cpus

_WIDTH = 150


def main(argv: Sequence[str] | None = None) -> int:
    """Climb; 0 if every rung could be measured, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    try:
        device, asked = resolve_device(args.device), pick_rungs(args.rungs)
    except (ModelError, ValueError) as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    rungs = [rung for rung in asked if device != "cpu" or not rung.needs_gpu]
    skipped = [rung.number for rung in asked if rung not in rungs]
    conditions = _conditions(args, device, skipped)
    console.print(rungs_table(RUNGS), conditions_table({"machine": machine()} | conditions))
    ladder = Ladder(console, args, device, rungs)
    rows = ladder.run()
    if not rows:
        console.print("[red]no measurement[/]")
        return 1
    conditions["device"] = ladder.device_name
    record = new_record("ladder", ladder.device_name, conditions, ladder.results(rows))
    finish(console, record, keep=not args.no_record, picture="bench.ladder.picture")
    return 1 if ladder.failed else 0


def _conditions(args: argparse.Namespace, device: str, skipped: Sequence[int]) -> dict[str, Any]:
    files = mix_images(MIX)
    return {
        "device": device,
        "mix": MIX,
        "files": len(files),
        "mean_file_bytes": mean_bytes(files),
        "models": list(args.models),
        "weights": f"{args.weights}; of {DEFAULT_MODEL} its own. Random ones are for speed only",
        "top1_agreement_of": f"{args.check_model}, its own weights, over the files of the mix",
        "batch_size": args.batch_size,
        "callers": [1, args.callers],
        "frontends": f"{args.frontends} on rung {SEVERAL}, decoding {share_of_cpus(args.frontends)} at a time each",
        "generator_processes": args.processes,
        "generator_on_the_same_machine": True,
        "warmup_s": args.warmup_seconds,
        "seconds": args.seconds,
        "profile": f"{args.profile_batches} batches or {args.profile_seconds:g} s, in the worker under the same load",
        "workers": "of all models start together, answer batches of every size, and are driven one after the other",
        "rungs_left_out_without_a_gpu": list(skipped),
        "server_args": list(args.server_args),
    }


def _parser() -> argparse.ArgumentParser:
    cpus = available_cpus()
    parser = argparse.ArgumentParser(prog="python -m bench.ladder", description="The incident, rung by rung.")
    add = parser.add_argument
    add("--models", "--model", type=_words, default=("efficientnet_b0", "resnet50"), help="as the server takes them")
    add("--weights", default="none", help="none (random: for speed, the default) or default (the published ones)")
    add("--rungs", type=_numbers, default=tuple(rung.number for rung in RUNGS), help="default: all")
    add("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda:N")
    add("--batch-size", type=int, default=8, help="most images in a forward (default 8)")
    add("--callers", type=int, default=32, help="of the second load (default 32)")
    add("--processes", type=int, default=4 if cpus >= 8 else 1, help="that they are spread over (default 4, or 1)")
    add("--frontends", type=_count, default=suggested_frontends(), help="of the last rung (default: CPUs less 2)")
    add("--seconds", type=float, default=2.5, help="length of a measurement, s (default 2.5)")
    add("--warmup-seconds", type=float, default=1.0, help="calls before it that do not count, s (default 1)")
    add("--profile-batches", type=int, default=200, help="to profile under each load (default 200)")
    add("--profile-seconds", type=float, default=6.0, help="longest profile, s (default 6)")
    add("--check-model", default=DEFAULT_MODEL, help=f"whose answers are checked (default {DEFAULT_MODEL}), or none")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of this service, on its rungs")
    return parser


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in _words(text))


if __name__ == "__main__":
    sys.exit(main())
