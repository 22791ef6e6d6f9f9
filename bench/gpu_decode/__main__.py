"""`make gpu-decode`: JPEGs decoded by a GPU, batch by batch beside the libraries, then the whole way in one process.

    python -m bench.gpu_decode [--mix small] [--model resnet50] [-- SETTING ...]

The libraries decode the same files in batches of the same sizes on one thread, each until its pixels are on the
device. The whole way is `pipeline.embedded` without gRPC: header, decode, resize, forward, top-k, with the feeding
thread in the same process. The last line printed is the record, in JSON.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.console import conditions_table, finish
from bench.gpu_decode import ways, whole
from bench.mix import MIXES, mean_bytes, mix_images
from bench.record import new_record
from pipeline.embedded import Pipeline
from pipeline.headers import Limits
from pipeline.lanes import device_name
from pipeline.model import ModelError
from server.build import model_and_options
from server.settings import parse

BATCHES = (1, 2, 4, 8, 16, 32, 64)
TARGET_IMG_S = 12_000
_WIDTH = 130
# The crop's window of a file of 500x375 with Resize(256) and CenterCrop(224): left, top, width, height.
_WINDOW = (84, 22, 332, 332)
_TURNS_BEFORE = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 once everything was measured, 1 where no GPU decodes."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False, width=_WIDTH)
    settings = parse(["--model", args.model, "--weights", args.weights, "--slots", str(args.slots), *args.settings])
    files = mix_images(args.mix)
    try:
        model, options = model_and_options(settings)
    except ModelError as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    if not options.on_gpu:
        console.print("[red]no measurement:[/] there is no GPU here")
        return 1
    conditions = {
        "device": device_name(options.device),
        "mix": args.mix,
        "mean_file_bytes": mean_bytes(files),
        "model": args.model,
        "weights": args.weights,
        "lanes": options.lanes,
        "batch_size": options.batch_size,
        "dtype": options.dtype,
        "feeding_thread_in_the_same_process": True,
        "server_args": args.settings,
    }
    console.print(conditions_table(conditions))
    rates, missing = _libraries(console, mix_images("small"), options.canvas_for(model), args.seconds)
    pipeline = Pipeline(model, options, Limits())
    pipeline.start().result()
    rows = [whole.measure(pipeline, files, in_flight, args.seconds) for in_flight in args.in_flight]
    pipeline.stop()
    console.print(_whole_table(rows, pipeline.info.execution))
    best = max(row.img_s for row in rows)
    console.print(f"in one process from the files' bytes: {best:,.0f} img/s (target {TARGET_IMG_S:,})")
    results = {"decode_img_s": rates, "not_measured": missing, "whole": [asdict(row) for row in rows], "img_s": best}
    finish(console, new_record("gpu_decode", device_name(options.device), conditions, results), keep=not args.no_record)
    return 0 if any("nvjpeg" in row.by for row in rows) else 1


def _libraries(
    console: Console, files: Sequence[bytes], canvas: int, seconds: float
) -> tuple[dict[str, dict[int, float]], dict[str, str]]:
    found, missing = ways.all_ways(files, canvas, _WINDOW)
    rates = {way.name: {size: _rate(way.make(size), size, seconds / 4) for size in BATCHES} for way in found}
    table = Table(
        "img/s in batches of", *(f"{size}" for size in BATCHES), "gives", title="Decode alone, files of small"
    )
    for way in found:
        table.add_row(f"{way.name} {way.version}", *(f"{rate:,.0f}" for rate in rates[way.name].values()), way.gives)
    console.print(table)
    for name, reason in missing.items():
        console.print(f"[yellow]not measured:[/] {name}: {reason}")
    return rates, missing


def _rate(run: Callable[[int], object], size: int, seconds: float) -> float:
    """Images per second."""
    for turn in range(_TURNS_BEFORE):
        run(turn)
    started_s, turn = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - started_s) < seconds:
        run(turn)
        turn += 1
    torch.cuda.synchronize()
    return size * turn / elapsed_s


def _whole_table(rows: Sequence[whole.Whole], execution: str) -> Table:
    table = Table("in flight", "img/s", "fill", "p50 ms", "p99 ms", "decoded by", title=f"In one process: {execution}")
    for row in rows:
        by = ", ".join(f"{name} {100 * share:.0f}%" for name, share in row.by.items())
        cells = f"{row.img_s:,.0f}", f"{row.batch_fill:.2f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", by
        table.add_row(str(row.in_flight), *cells)
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_decode", description="JPEGs decoded by a GPU.")
    add: Any = parser.add_argument
    mixes = [name for name in MIXES if name != "none"]
    add("--mix", choices=mixes, default="small", help="files of the whole way (default small)")
    add("--model", default="resnet50", help="as the server takes it (default resnet50)")
    add("--weights", default="none", help="none (random: for speed, the default) or default")
    add("--in-flight", type=_numbers, default=(1, 32, 128, 256), help="images under way (default 1,32,128,256)")
    add("--slots", type=int, default=256, help="of the service; not fewer than images under way (default 256)")
    add("--seconds", type=float, default=3.0, help="length of a measurement, s (default 3)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("settings", nargs="*", metavar="SETTING", help="after --: settings of the service")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
