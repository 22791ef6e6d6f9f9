"""`make without-grpc`: how many images a second the service could answer if gRPC cost nothing.

    python -m bench.without_grpc [--feeders 4] [--in-flight 64] [-- SETTING ...]

The supervisor and its engines are the service's own. In each frontend's place a process takes files from memory and
does with them what a frontend does: header, slot, decode or hand over to the GPU, descriptor, reply. With --skip-decode
among the settings it is the engine alone that is fed. The last line printed is the record, in JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.closed_loop import Fed, together
from bench.console import conditions_table, finish
from bench.mix import MIXES, mean_bytes, mix_images
from bench.record import new_record
from bench.service import ROOT, python_path
from bench.without_grpc.feeder import FED, VARIABLE, Load
from pipeline.lanes import device_name, resolve_device
from server.settings import Settings, parse

_STOP_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if the service did not start, or images failed."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    given = ["--slots", str(max(args.in_flight, 64)), *args.settings, "--frontends", str(args.feeders), "--port", "0"]
    settings = parse(given)
    conditions = _conditions(args, settings)
    console.print(conditions_table(conditions))
    try:
        with tempfile.TemporaryDirectory(prefix="warmlane-fed-") as folder:
            load = Load(folder, args.mix, args.in_flight, args.warm_up_seconds, args.seconds)
            fed, serving = _measure(given, load, args.feeders)
    except RuntimeError as error:
        console.print(f"no measurement: {error}", markup=False)
        return 1
    results = _results(fed)
    console.print(serving, markup=False, soft_wrap=True)
    console.print(_table(results))
    record = new_record("without_grpc", conditions["device"], conditions, results)
    finish(console, record, keep=not args.no_record)
    return 1 if results["failed"] else 0


def _measure(settings: Sequence[str], load: Load, feeders: int) -> tuple[Fed, str]:
    """What all feeders have seen, and the line in which the service says that it serves."""
    with _service(settings, load) as process:
        assert process.stdout is not None
        serving, fed = "", list[Fed]()
        while len(fed) < feeders:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the service ended with {process.wait()}; its log is above")
            if line.startswith(FED):
                fed.append(Fed(**json.loads(Path(line.removeprefix(FED).strip()).read_text())))
            elif line.startswith("serving "):
                serving = line.rpartition(": warmlane")[0]
        return together(fed), serving


@contextmanager
def _service(settings: Sequence[str], load: Load) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "bench.without_grpc.service", "--log-level", "warning", *settings]
    environment = os.environ | {"PYTHONPATH": python_path(), VARIABLE: json.dumps(asdict(load))}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()
            _wait_or_kill(process)


def _wait_or_kill(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _conditions(args: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    files = mix_images(args.mix)
    return {
        "mix": args.mix,
        "mean_file_bytes": mean_bytes(files) if files else 0,
        "model": settings.model,
        "device": device_name(resolve_device(settings.devices[0])),
        "engines": len(settings.devices),
        "feeders": args.feeders,
        "in_flight_each": args.in_flight,
        "seconds": args.seconds,
        "cpus": os.cpu_count(),
        "server_args": args.settings,
    }


def _results(fed: Fed) -> dict[str, Any]:
    p50_ms, p99_ms = fed.percentiles_ms(50, 99)
    return {
        "img_s": fed.img_s,
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "batch_fill": fed.batch_fill,
        "failed": fed.failed,
        "decoded_by": fed.shares,
    }


def _table(results: dict[str, Any]) -> Table:
    table = Table("img/s", "fill", "p50 ms", "p99 ms", "failed", "decoded by")
    by = ", ".join(f"{name} {share:.0%}" for name, share in results["decoded_by"].items())
    numbers = (f"{results[name]:,.{digits}f}" for name, digits in _SHOWN.items())
    table.add_row(*numbers, by)
    return table


_SHOWN = {"img_s": 0, "batch_fill": 2, "p50_ms": 2, "p99_ms": 2, "failed": 0}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.without_grpc", description="The service without gRPC.")
    add: Any = parser.add_argument
    add("--mix", choices=[*MIXES], default="small", help="which files (default small)")
    add("--feeders", type=int, default=4, help="processes in the place of frontends (default 4)")
    add("--in-flight", type=int, default=64, help="images of each under way at all times (default 64)")
    add("--seconds", type=float, default=5.0, help="length of the measurement, s (default 5)")
    add("--warm-up-seconds", type=float, default=1.0, help="before and after it, under the same load, s (default 1)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("settings", nargs="*", metavar="SETTING", help="after --: settings of the service")
    return parser


if __name__ == "__main__":
    sys.exit(main())
