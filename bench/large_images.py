"""`make large`: 64 images of 49 megapixels at once, half JPEG and half PNG, beside callers of small ones.

    python -m bench.large_images [--count 64] [-- SERVER SETTINGS]

What must hold: memory stays within reach of --max-decoded-bytes, and the small ones hardly notice. The engine computes
nothing, so that what is measured is decoding. Small images are sent at scheduled times, before the large ones and
until the last of these has been answered; latency counts from the schedule. Memory is the proportional set size of all
of the server's processes, ten times a second. The last line printed is the record, in JSON.
"""

import argparse
import asyncio
import io
import multiprocessing
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.console import finish, running_service
from bench.mix import PHOTOGRAPHS, mix_images
from bench.record import machine, new_record
from bench.service import Service, ServiceError
from warmlane.client import AsyncClient
from warmlane.errors import WarmlaneError

SIDE = 7000
_SAMPLE_S = 0.1
_PATIENCE_S = 300.0
_SETTLE_S = 1.0


@dataclass(slots=True)
class Calls:
    """What became of some calls: milliseconds from when they were due, and outcomes."""

    waits_ms: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    async def call(self, client: AsyncClient, image: bytes, due_s: float) -> None:
        try:
            await client.classify(image, timeout_s=_PATIENCE_S)
            self.outcomes["OK"] += 1
        except WarmlaneError as error:
            self.outcomes[type(error).__name__] += 1
        self.waits_ms.append(1e3 * (time.monotonic() - due_s))

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.waits_ms, percent)) if self.waits_ms else float("nan")


class Memory:
    """The most that a service had, in bytes, since this was entered or last asked."""

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._peak = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def peak(self) -> float:
        found, self._peak = max(self._peak, self._measure()), 0.0
        return found

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._peak = max(self._peak, self._measure())


def large_files() -> tuple[bytes, bytes]:
    """A photograph of 49 megapixels as JPEG, and one with as many pixels of few colours as PNG."""
    with Image.open(PHOTOGRAPHS / "cat.jpg") as cat:
        photograph = cat.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        drawing = cat.convert("RGB").resize((175, 175)).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    return _encode(photograph, "JPEG", quality=85), _encode(drawing, "PNG", compress_level=1)


def _encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if every call was answered, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    files = large_files()
    megabytes = [len(file) / 1e6 for file in files]
    console.print(
        f"{machine()}; {args.count} images of {SIDE}x{SIDE}, JPEG of {megabytes[0]:.1f} MB and PNG of "
        f"{megabytes[1]:.1f} MB by turns; {args.rate:g} small images a second"
    )
    try:
        with running_service(console, ["--null-engine", *args.server_args]) as service:
            results = asyncio.run(_measure(service, args, files))
    except ServiceError as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    console.print(_table(results))
    conditions = {"count": args.count, "side": SIDE, "rate": args.rate, "server_args": args.server_args}
    finish(console, new_record("large-images", "cpu", conditions, results), keep=not args.no_record)
    return 0 if set(results["large_outcomes"]) | set(results["small_outcomes"]) == {"OK"} else 1


async def _measure(service: Service, args: argparse.Namespace, files: tuple[bytes, bytes]) -> dict[str, Any]:
    small = mix_images("small")
    with Memory(service.pss_bytes) as memory:
        async with AsyncClient(service.target, connections=8) as client:
            await _small_until(client, small, args.rate, _in(_SETTLE_S))  # connections, first images
            # The decoders of PNG are started by their first image.
            await client.classify(files[1], timeout_s=_PATIENCE_S)
            memory.peak()
            alone = await _small_until(client, small, args.rate, _in(args.seconds))
            before_bytes = memory.peak()
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                crowd = asyncio.wrap_future(pool.submit(_crowd, service.target, args.count, files))
                beside = await _small_until(client, small, args.rate, crowd)
            large = crowd.result()
            peak_bytes = memory.peak()
    return {
        "small_alone_p50_ms": alone.percentile(50),
        "small_alone_p99_ms": alone.percentile(99),
        "small_beside_p50_ms": beside.percentile(50),
        "small_beside_p99_ms": beside.percentile(99),
        "small_beside_largest_ms": max(beside.waits_ms),
        "small_outcomes": dict(alone.outcomes + beside.outcomes),
        "small_calls_beside": len(beside.waits_ms),
        "large_outcomes": dict(large.outcomes),
        "large_took_s": max(large.waits_ms) / 1e3,
        "memory_before_mib": before_bytes / 2**20,
        "memory_peak_mib": peak_bytes / 2**20,
    }


def _crowd(target: str, count: int, files: tuple[bytes, bytes]) -> Calls:
    """All the large ones at once, from a process of their own: they shall not hold up the callers of small ones."""

    async def call() -> Calls:
        calls = Calls()
        async with AsyncClient(target, connections=4) as client:
            due_s = time.monotonic()
            await asyncio.gather(*(calls.call(client, files[n % len(files)], due_s) for n in range(count)))
        return calls

    return asyncio.run(call())


def _in(seconds: float) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(asyncio.sleep(seconds))


async def _small_until(client: AsyncClient, files: Sequence[bytes], rate: float, done: "asyncio.Future[Any]") -> Calls:
    calls, tasks, due_s, number = Calls(), set(), time.monotonic(), 0
    while not done.done():
        tasks.add(asyncio.create_task(calls.call(client, files[number % len(files)], due_s)))
        number += 1
        due_s += 1.0 / rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    await asyncio.gather(done, *tasks)
    return calls


def _table(results: dict[str, Any]) -> Table:
    table = Table(show_header=False, box=None)
    for name, value in results.items():
        table.add_row(name.replace("_", " "), f"{value:,.1f}" if isinstance(value, float) else str(value))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.large_images", description="Large images beside small ones.")
    add = parser.add_argument
    add("--count", type=int, default=64, help="large images, all at once (default 64)")
    add("--rate", type=float, default=25.0, help="small images a second (default 25)")
    add("--seconds", type=float, default=10.0, help="how long the small ones are alone first, s (default 10)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
