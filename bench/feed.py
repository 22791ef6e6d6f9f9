"""`make feed`: random tensors straight into the served model. The first test of any report: no data, only the graph.

    python -m bench.feed [--model resnet50 --weights none] [--lanes 1,2,3,4] [--batch-sizes 8,32] [SERVER SETTINGS]

The model is compiled and put on its lanes as the service would, a user's own factory included. For each batch size and
number of lanes: the graphs alone, the lanes with their copies, and the service without gRPC, which is fed requests
whose pixels already lie in their slots. The last line printed is the record, in JSON.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.console import finish
from bench.feed_ceiling import ceiling
from bench.feed_engine import Served, measure_engine
from bench.feed_lanes import Feed, lanes_ms, profile_graph, replay_ms
from bench.record import machine, new_record
from bench.trace import TraceSummary
from pipeline.engine import Warm
from pipeline.lanes import build_lanes, device_name
from pipeline.model import Model, ModelError
from pipeline.options import Options
from server.build import pipeline_options, served_model
from server.settings import parse

_BATCHES = {"cuda": 400, "cpu": 20}
_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Row:
    """One number of lanes at one batch size.

    Attributes:
        graph_ms: milliseconds a batch, all lanes busy: uint8 canvas to top-k, both on the device. On a CPU `copies_ms`.
        copies_ms: the same with the copies from the slots and of the top-k.
        served: the service without gRPC.
    """

    lanes: int
    batch_size: int
    graph_ms: float
    copies_ms: float
    served: Served

    @property
    def graph_img_s(self) -> float:
        """Images per second of the graphs alone."""
        return 1e3 * self.batch_size / self.graph_ms

    @property
    def copies_img_s(self) -> float:
        """Images per second of the lanes with their copies."""
        return 1e3 * self.batch_size / self.copies_ms

    def result(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self) | {"graph_img_s": self.graph_img_s, "copies_img_s": self.copies_img_s}


@dataclass(frozen=True, slots=True)
class Fed:
    """Everything of one batch size: how the model runs, what one batch consists of, and a row for each lane count."""

    warm: Warm
    trace: TraceSummary
    rows: Sequence[Row]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0, or 1 where the model cannot be had."""
    args, server_args = _parser().parse_known_args(argv)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    settings = parse(["--batch-size", str(max(args.batch_sizes)), *server_args])
    try:
        model, options = served_model(settings), pipeline_options(settings)
    except ModelError as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    args.lanes = args.lanes or ((1, 2, 3, 4) if options.on_gpu else tuple(sorted({1, options.lanes})))
    conditions = _conditions(args, model, options, server_args)
    console.print(_table("Conditions", {"machine": machine()} | conditions))
    limits = ceiling(model, options, args.batch_sizes)
    console.print(_table("Ceiling, img/s", limits))
    fed = _feed_all(console, args, model, options)
    for size, each in fed.items():
        _print_fed(console, size, each)
    record = new_record("feed", device_name(options.device), conditions, _results(fed, limits))
    finish(console, record, keep=not args.no_record)
    return 0


def _feed_all(console: Console, args: argparse.Namespace, model: Model, options: Options) -> dict[int, Fed]:
    """By batch size. All timings come before the first profile, which leaves its hooks in the process."""
    feeds: dict[int, Feed] = {}
    rows: dict[int, list[Row]] = {}
    for size in args.batch_sizes:
        with console.status(f"compiling for batches of {size}"):
            feeds[size] = _build(model, options, size, max(args.lanes))
        warm = feeds[size].warm
        console.print(f"batches of {size}: {'; '.join(filter(None, (warm.execution, warm.cost)))}", markup=False)
        rows[size] = [_row(args, feeds[size], count) for count in args.lanes]
    with console.status("profiling"):
        return {size: _profiled(args, feed, rows[size]) for size, feed in feeds.items()}


def _build(model: Model, options: Options, batch_size: int, lanes: int) -> Feed:
    sized = replace(options, batch_size=batch_size, lanes=lanes)
    return Feed(model, sized, build_lanes(model, sized))


def _row(args: argparse.Namespace, feed: Feed, lanes: int) -> Row:
    batches = args.batches or _BATCHES["cuda" if feed.options.on_gpu else "cpu"]
    with torch.inference_mode():
        copies_ms = lanes_ms(feed, lanes, batches)
        graph_ms = replay_ms(feed, lanes, batches) if feed.options.on_gpu else copies_ms
    return Row(lanes, feed.options.batch_size, graph_ms, copies_ms, measure_engine(feed, lanes, args.seconds))


def _profiled(args: argparse.Namespace, feed: Feed, rows: Sequence[Row]) -> Fed:
    """What one batch consists of, and how busy the service kept the GPU."""
    with torch.inference_mode():
        trace = profile_graph(feed, args.profile_batches)
    if not feed.options.on_gpu:
        return Fed(feed.warm, trace, rows)
    busy = [
        replace(row, served=row.served.profiled(feed, row.lanes, args.profile_batches, args.seconds)) for row in rows
    ]
    return Fed(feed.warm, trace, busy)


def _results(fed: dict[int, Fed], limits: dict[str, float]) -> dict[str, Any]:
    first = next(iter(fed.values()))
    return {
        "img_s": {str(row.lanes): row.graph_img_s for row in first.rows},
        "ceiling_img_s": limits,
        "rows": [row.result() for each in fed.values() for row in each.rows],
        "batch": {str(size): asdict(each.trace) | {"execution": each.warm.execution} for size, each in fed.items()},
    }


def _conditions(args: argparse.Namespace, model: Model, options: Options, server_args: Sequence[str]) -> dict[str, Any]:
    return {
        "device": device_name(options.device),
        "model": model.name,
        "weights": model.version,
        "input": f"random uint8 canvases of {options.canvas_for(model)} pixels square",
        "copied_in": "the lines of a 500x375 photograph's window",
        "dtype": options.dtype,
        "batch_sizes": list(args.batch_sizes),
        "lanes": list(args.lanes),
        "batches": args.batches or _BATCHES["cuda" if options.on_gpu else "cpu"],
        "engine_seconds": args.seconds,
        "server_args": list(server_args),
    }


def _print_fed(console: Console, size: int, fed: Fed) -> None:
    trace = fed.trace
    if trace.kernels:
        console.print(
            f"\nA batch of {size}: {trace.kernels:.0f} kernels, {trace.kernel_ms:.3f} ms of them, "
            f"{100 * trace.short_kernels:.0f}% under 10 us; {trace.launches:.1f} launches by the host, "
            f"{trace.copies_in_ms:.3f} ms of copies in"
        )
    console.print(_rows_table(size, fed.rows))


def _rows_table(size: int, rows: Sequence[Row]) -> Table:
    table = Table(title=f"Batches of {size}", title_justify="left")
    for title in ("lanes", "graph ms", "img/s", "with copies ms", "img/s", *_SERVED):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.graph_ms:.3f}", f"{row.graph_img_s:,.0f}", f"{row.copies_ms:.3f}", f"{row.copies_img_s:,.0f}"]
        table.add_row(str(row.lanes), *cells, *(show(row.served) for show in _SERVED.values()))
    return table


_SERVED: dict[str, Callable[[Served], str]] = {
    "service img/s": lambda served: f"{served.img_s:,.0f}",
    "fill": lambda served: f"{served.batch_fill:.2f}",
    "GPU busy": lambda served: _percent(served.gpu_busy),
    "useful": lambda served: _percent(served.useful_busy),
    "idle p50 ms": lambda served: f"{served.idle_p50_ms:.2f}",
}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _table(title: str, rows: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else str(value))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.feed",
        description="Random tensors straight into the served model.",
        epilog="Every other option is a setting of the server, such as --model, --weights, --dtype or --canvas.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--lanes", type=_counts, help="numbers of lanes (default 1,2,3,4 on a GPU; one and all on a CPU)")
    add("--batch-sizes", "--batch-size", type=_counts, default=(8, 32), help="images in a forward (default 8,32)")
    add("--batches", type=int, default=0, help="timed in a measurement (default 400 on a GPU, 20 on a CPU)")
    add("--seconds", type=float, default=2.0, help="of the service without gRPC, s (default 2)")
    add("--profile-batches", type=int, default=200, help="to profile (default 200)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    return parser


def _counts(text: str) -> tuple[int, ...]:
    numbers = tuple(int(word) for word in text.split(","))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


if __name__ == "__main__":
    sys.exit(main())
