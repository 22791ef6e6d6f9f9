"""`make decode`: JPEG decode on one core, from bytes to the crop's window in a slot, beside the libraries' bare decode.

    python -m bench.decode [--mix small] [--rounds 15]

One thread, CPU time of that thread, the ways by turns, medians of the rounds: what others do on the machine meanwhile
matters least so. The ceiling is the fastest library, which hands over the whole image and checks nothing. OpenCV and
torchcodec are measured where they are installed (`pip install '.[decoders]'`). Then 12-megapixel photographs, whole
and decoded smaller (--prescale). The last line printed is the record, in JSON.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bench.console import finish
from bench.decode import large, ways
from bench.mix import MIXES, mean_bytes, mix_images
from bench.parity import photographs
from bench.record import machine, new_record
from pipeline.headers import Limits
from pipeline.model import load_model
from pipeline.options import CUDA_CANVAS

TARGET = 0.95
LARGE_TARGET = 3.0
_LARGE_ROUNDS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 once everything was measured, whatever it was."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False, width=120)
    torch.set_num_threads(1)
    model = load_model()
    files = mix_images(args.mix)
    bare, missing = ways.bare_ways()
    kilobytes = mean_bytes(files) / 1e3
    console.print(f"{machine()}; one thread; {len(files)} files of {args.mix}, {kilobytes:.0f} KB; {model.preprocess}")
    for name, reason in missing.items():
        console.print(f"[yellow]not measured:[/] {name}: {reason}")
    own = ways.own_ways(model.preprocess, Limits())
    costs = _medians(ways.cpu_us([*bare, *own], files, args.rounds), console, args.rounds)
    small = _against(costs, min(costs[way.name] for way in bare))
    versions = {way.name: way.version for way in bare}
    console.print(_table(f"{args.mix}, one core", small, versions))
    best = max(bare, key=lambda way: small[way.name]["of_ceiling"])
    reached = small[ways.OWN]["of_ceiling"]
    console.print(f"into a warm slot: {reached:.2f} of {best.name} (target {TARGET})\n")
    results: dict[str, Any] = {"small": small, "fastest": best.name, "not_measured": missing}
    results |= _measure_large(console, model)
    conditions = {"mix": args.mix, "rounds": args.rounds, "canvas": CUDA_CANVAS, "libraries": versions}
    finish(console, new_record("decode", "cpu", conditions, results), keep=not args.no_record)
    return 0


def _measure_large(console: Console, model: Any) -> dict[str, Any]:
    files = [large.enlarged(photograph) for photograph in photographs()]
    runs = ways.cpu_us(large.large_ways(model, CUDA_CANVAS), files, _LARGE_ROUNDS)
    costs = _medians(runs, console, _LARGE_ROUNDS)
    figures = _against(costs, costs[large.FULL])
    console.print(_table(f"{len(files)} photographs of 12 megapixels, {mean_bytes(files) / 1e6:.1f} MB", figures, {}))
    gain = figures[large.SCALED]["of_ceiling"]
    console.print(f"--prescale: {gain:.2f} times as fast (target {LARGE_TARGET:g})")
    changed = large.change(model, files)
    console.print(
        f"it changes: grey levels by {changed.largest:.0f} at most (tolerance {large.LARGEST_LEVELS}), "
        f"{changed.mean:.2f} in the mean ({large.MEAN_LEVELS}); a probability by {changed.probability:.4f} at most "
        f"({large.LARGEST_PROBABILITY}); the best class stays on {100 * changed.top1:.0f} %\n"
    )
    return {"large": figures, "prescale": asdict(changed) | {"tolerable": changed.is_tolerable}}


def _medians(runs: Any, console: Console, rounds: int) -> dict[str, float]:
    with console.status(f"measuring, {rounds} rounds"):
        each = list(runs)
    return {name: float(np.median([run[name] for run in each])) for name in each[0]}


def _against(costs: Mapping[str, float], ceiling_us: float) -> dict[str, dict[str, float]]:
    return {name: {"cpu_us": us, "img_s_core": 1e6 / us, "of_ceiling": ceiling_us / us} for name, us in costs.items()}


def _table(title: str, figures: Mapping[str, Mapping[str, float]], versions: Mapping[str, str]) -> Table:
    table = Table("", "version", "CPU us an image", "img/s a core", "of the ceiling", title=title, title_justify="left")
    for name, row in figures.items():
        cells = f"{row['cpu_us']:,.0f}", f"{row['img_s_core']:,.0f}", f"{row['of_ceiling']:.2f}"
        table.add_row(name, versions.get(name, ""), *cells)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.decode", description="JPEG decode on one core.")
    add = parser.add_argument
    add(
        "--mix", choices=[name for name in MIXES if name != "none"], default="small", help="which files (default small)"
    )
    add("--rounds", type=int, default=15, help="how often the ways take turns (default 15)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
