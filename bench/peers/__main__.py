"""The same model behind this server and behind others, under the same load, in one run.

    python -m bench.peers [--peers warmlane,litserve,mosec,ray-serve,bentoml,pytriton] [--tune]
    python -m bench.peers --device cuda --model resnet50 --weights none --peers warmlane,warmlane-cpu,litserve,mosec \
        --callers 1,32,128 --processes 6 --slo-ms 50 --once --rate 500 --wheels DIR

Each peer is installed into a folder of its own, started with nothing compiled, asked for the sample photographs, whose
best classes must be the reference's, and loaded by closed loops of several callers. Then, --rounds times and by turns,
each is started again, called at one same rate by callers who do not wait for each other (latency counts from the
scheduled time), and loaded by its best closed loop; figures are medians. With --once the model is compiled beforehand,
and each is started once for both. A peer that cannot be installed or started is a
row of the table that says so. The last line printed is the record, in JSON.

Exit code 0 if every service could be measured, else 1.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.console import conditions_table, finish
from bench.mix import MIXES, mean_bytes, mix_images
from bench.peers import report
from bench.peers.catalog import ALL, find, key
from bench.peers.compare import Comparison
from bench.peers.install import PeerError, install
from bench.peers.reference import make_reference
from bench.peers.rows import MEASURED
from bench.record import machine, new_record
from pipeline.model import ModelError
from pipeline.options import DEFAULT_MODEL

_SHORTEST_LINE = 150


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; see above."""
    args = parse(argv)
    console = Console(highlight=False)
    console = Console(highlight=False, width=max(console.width, _SHORTEST_LINE))
    if args.install_only:
        return _install_all(console, args)
    conditions = _conditions(args)
    console.print(conditions_table(conditions))
    console.print(report.NOT_MEASURED)
    with tempfile.TemporaryDirectory(prefix="warmlane-peers-weights-") as folder:
        try:
            reference = make_reference(args.model, args.weights, args.mix, Path(folder))
        except ModelError as error:
            console.print(f"[red]no measurement:[/] {error}")
            return 1
        conditions["different_top1_of_the_files"] = len(set(reference.mix_top1))
        comparison = Comparison(console, args, args.peers, reference)
        rows = comparison.run()
    conditions |= {"same_rate": comparison.rate, "load_average_at_the_end": os.getloadavg()[0]}
    console.print(report.configurations(rows))
    console.print(report.closed_loops(rows))
    console.print(report.results(rows, args.slo_ms, comparison.rate))
    for line in report.findings(rows):
        console.print(f"  - {line}", markup=False)
    console.print(report.NOT_MEASURED)
    record = new_record("peers", conditions["runs_on"], conditions, [row.result() for row in rows])
    finish(console, record, keep=not args.no_record)
    return 0 if all(row.status == MEASURED for row in rows) else 1


def _install_all(console: Console, args: argparse.Namespace) -> int:
    failed = 0
    for peer in args.peers:
        try:
            console.print(f"{peer.name}: installed {install(peer, args.python, args.wheels).version}".rstrip())
        except PeerError as error:
            failed += 1
            console.print(f"{peer.name}: {error}", markup=False)
    return 1 if failed else 0


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "weights", "batch_size", "batch_wait_ms", "mix", "callers", "processes")
    timing = ("seconds", "warmup_seconds", "slo_ms", "rounds", "once", "tune")
    chosen: dict[str, Any] = {name: getattr(args, name) for name in (*names, *timing)}
    files = mix_images(args.mix)
    return {
        "machine": machine(),
        "runs_on": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        **chosen,
        "peers": [peer.name for peer in args.peers],
        "torch": torch.__version__,
        "files": len(files),
        "mean_file_bytes": mean_bytes(files),
        "generator_on_the_same_machine": True,
        "load_average_before": os.getloadavg()[0],
        "not_measured": "Triton with TensorRT and DALI",
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says; ends the program, in one line, where it cannot be."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Other servers under the same load.")
    add = parser.add_argument
    add("--peers", default=",".join(map(key, ALL)), help="which, by commas (default all)")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--model", default=DEFAULT_MODEL, help=f"as the server takes it (default {DEFAULT_MODEL})")
    add("--weights", default="default", help="default, none (the same random ones for all), or a state dict's path")
    add("--batch-size", type=int, default=8, help="most images in a forward (default 8)")
    add("--batch-wait-ms", type=int, default=2, help="for peers whose batches wait, ms (default 2)")
    add("--mix", choices=tuple(MIXES), default="small", help="which files (default small)")
    add("--callers", type=_numbers, default=[1, 8, 16, 32], help="closed loops, by commas (default 1,8,16,32)")
    add("--processes", type=int, default=1, help="processes that the callers are spread over (default 1)")
    add("--seconds", type=float, default=8.0, help="length of each measurement, s (default 8)")
    add("--warmup-seconds", type=float, default=3.0, help="calls before it that do not count, s (default 3)")
    add("--slo-ms", type=float, default=500.0, help="limit on the 99th percentile, ms (default 500)")
    add("--rate", type=float, default=0.0, help="calls a second that all get (default: a share of the slowest's most)")
    add("--rate-share", type=float, default=0.5, help="that share (default 0.5)")
    add("--rounds", type=int, default=1, help="starts after the first, by turns (default 1)")
    add("--start-timeout", type=float, default=600.0, help="longest start, s (default 600)")
    add("--once", action="store_true", help="start each once, with what is compiled in a cache; needs --rate")
    add("--tune", action="store_true", help="try all layouts of each and keep the best; else the first")
    add("--python", default=sys.executable, help="the interpreter of the servers (default this one)")
    add("--wheels", type=Path, help="install from wheel files in this folder, or in a folder of each peer's name in it")
    add("--install-only", action="store_true", help="install the peers and stop")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    args = parser.parse_args(argv)
    if args.once and not args.rate:
        parser.error("--once needs --rate: what the slowest can do is known only at the end")
    try:
        args.peers = find(args.peers.split(","))
    except ValueError as error:
        parser.error(str(error))
    return args


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
