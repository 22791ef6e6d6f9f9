"""`make streams`: what an image costs a frontend in a stream, against a call of its own.

    python -m bench.streams [--rounds 5] [--seconds 6] [-- SERVER SETTINGS]

The engine computes nothing and images are not decoded, so that what remains is the frontend: gRPC, admission, slots,
messages. Single calls and streams take turns, over as many connections and with as many images under way. The figure
is CPU time of the frontends per image, so that callers on the same cores do not count. Then both once more with decode,
without a target. The last line printed is the record, in JSON.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc
import psutil
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.children import children
from bench.console import running_service
from bench.load import finish
from bench.mix import MIXES, mix_images
from bench.record import machine, new_record
from bench.service import Service, ServiceError
from bench.summary import spread
from bench.ways import Window
from warmlane.base import CHANNEL_OPTIONS
from warmlane.v1 import classifier_pb2 as pb

TARGET = 1.8
_SERVICE = pb.DESCRIPTOR.services_by_name["Classifier"].full_name
_WARM_UP_S = 1.5
_WAYS = ("unary", "stream")
_CASES = {"no decode": ("--null-engine", "--skip-decode"), "decode": ("--null-engine",)}


@dataclass(slots=True)
class Tally:
    """What the callers were answered in the window."""

    answered: int = 0
    errors: Counter[str] = field(default_factory=Counter)


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


@dataclass(frozen=True, slots=True)
class Plan:
    """How the images are sent.

    Attributes:
        in_flight: images under way on each connection, in either way.
    """

    target: str
    mix: str
    connections: int
    in_flight: int


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
    server_args = [*flags, *sizes, "--log-level", "warning", *args.server_args]
    with running_service(console, server_args) as service, _process() as pool:
        plan = Plan(service.target, args.mix, args.connections, args.in_flight)
        rounds = track(range(args.rounds), f"single calls and streams by turns, {case}", console=console)
        return [{way: _pace(pool, way, plan, service, args.seconds) for way in _WAYS} for _ in rounds]


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _pace(pool: ProcessPoolExecutor, way: str, plan: Plan, service: Service, seconds: float) -> Pace:
    pool.submit(mix_images, plan.mix).result()
    open_s = time.monotonic() + _WARM_UP_S
    calls = pool.submit(drive, way, plan, Window(open_s, open_s + seconds))
    time.sleep(_WARM_UP_S)
    before_s = _frontend_cpu_s(service)
    time.sleep(seconds)
    cpu_s = _frontend_cpu_s(service) - before_s
    tally = calls.result()
    if tally.errors or not tally.answered:
        raise Invalid(f"{way}: {tally.answered} answers, errors: {dict(tally.errors)}\n{service.log_tail()}")
    return Pace(tally.answered / seconds, 1e3 * cpu_s / tally.answered, cpu_s / seconds)


def _frontend_cpu_s(service: Service) -> float:
    """Of the frontends; of the one process in the embedded form, whose engine does next to nothing."""
    frontends = [child.process for child in children(service.pid) if child.role == "frontend"]
    return sum(sum(process.cpu_times()[:2]) for process in frontends or [psutil.Process(service.pid)])


def drive(way: str, plan: Plan, window: Window) -> Tally:
    """Send images from this process in one way until the window closes."""
    return uvloop.run(_drive(way, plan, window))


async def _drive(way: str, plan: Plan, window: Window) -> Tally:
    tally = Tally()
    send = {"unary": _send_unary, "stream": _send_stream}[way]
    await asyncio.gather(*(send(plan, window, tally) for _ in range(plan.connections)))
    return tally


async def _send_unary(plan: Plan, window: Window, tally: Tally) -> None:
    requests = itertools.cycle(_unary_requests(plan.mix))
    async with grpc.aio.insecure_channel(plan.target, CHANNEL_OPTIONS) as channel:
        call: Callable[[bytes], Any] = channel.unary_unary(f"/{_SERVICE}/Classify", None, None)

        async def caller() -> None:
            while time.monotonic() < window.stop_s:
                try:
                    answer = pb.ClassifyResponse.FromString(await call(next(requests)))
                except grpc.aio.AioRpcError as error:
                    tally.errors[error.code().name] += 1
                    return
                _note(tally, window, answer)

        await asyncio.gather(*(caller() for _ in range(plan.in_flight)))


async def _send_stream(plan: Plan, window: Window, tally: Tally) -> None:
    requests = itertools.cycle(_stream_requests(plan.mix))

    async def until_closed() -> AsyncIterator[bytes]:
        while time.monotonic() < window.stop_s:
            yield next(requests)

    async with grpc.aio.insecure_channel(plan.target, CHANNEL_OPTIONS) as channel:
        try:
            async for data in channel.stream_stream(f"/{_SERVICE}/ClassifyStream", None, None)(until_closed()):
                result = pb.ClassifyStreamResponse.FromString(data).result
                if result.HasField("error"):
                    tally.errors[str(result.error.code)] += 1
                else:
                    _note(tally, window, result.response)
        except grpc.aio.AioRpcError as error:
            tally.errors[error.code().name] += 1


def _note(tally: Tally, window: Window, answer: pb.ClassifyResponse) -> None:
    if not answer.predictions:
        tally.errors["no predictions"] += 1
    tally.answered += window.open_s <= time.monotonic() <= window.stop_s


def _unary_requests(mix: str) -> list[bytes]:
    """Ready to be sent, so that the callers take little from the server."""
    return [pb.ClassifyRequest(image=image).SerializeToString() for image in mix_images(mix)]


def _stream_requests(mix: str) -> list[bytes]:
    requests = (pb.ClassifyRequest(image=image) for image in mix_images(mix))
    return [
        pb.ClassifyStreamRequest(id=number, request=request).SerializeToString()
        for number, request in enumerate(requests)
    ]


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
