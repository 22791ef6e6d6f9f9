"""What counting costs an image, against the least that an image can cost a frontend: a gRPC call that does nothing.

    python -m bench.metrics_cost [--seconds 5] [--rounds 50]

Counted is as behind several frontends: in mapped files, which the supervisor reads (server/metrics_files.py). A
frontend counts an answer, an engine counts a batch; both are timed in a process of their own, in CPU microseconds an
image. The call is timed by the CPU time of a process that answers JPEGs of the set `small` with the same words each
time: a real frontend also admits, decodes and passes on, so its share is smaller. The last line printed is the record,
in JSON.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
from rich.console import Console

from bench.console import finish
from bench.generator import Generator, Load, Plan
from bench.record import machine, new_record
from bench.service import ROOT, python_path

MOST_PERCENT = 2.0
# What an engine must keep up with on an H200 (docs/architecture.md), in microseconds an image.
ENGINE_BUDGET_US = 1e6 / 15_000
_BATCH_SIZE = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Measure; 0 if counting costs less than it may, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    conditions = {"mix": "small", "callers": 16, "seconds": args.seconds, "batch_fill": _BATCH_SIZE}
    console.print(f"{machine()}; {conditions}", soft_wrap=True)
    results = shares(counting_us(args.rounds), bare_call_us(args.seconds))
    for name, value in results.items():
        console.print(f"{name:20} {value:8.2f}")
    finish(console, new_record("metrics-cost", "cpu", conditions, results), keep=not args.no_record)
    return 0 if max(results["frontend_percent"], results["engine_percent"]) < MOST_PERCENT else 1


def shares(counting: dict[str, float], call_us: float) -> dict[str, float]:
    """The results: what was measured, and the shares in percent."""
    engine_us = counting["batch_us"] / _BATCH_SIZE
    return {
        "answer_us": counting["answer_us"],
        "bare_call_us": call_us,
        "frontend_percent": 100 * counting["answer_us"] / call_us,
        "engine_us": engine_us,
        "engine_percent": 100 * engine_us / ENGINE_BUDGET_US,
    }


def counting_us(rounds: int) -> dict[str, float]:
    """CPU microseconds of `answer_us`, an image in a frontend, and `batch_us`, a batch in an engine."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.metrics_cost_counting", folder, str(rounds), str(_BATCH_SIZE)]
        done = subprocess.run(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, check=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def bare_call_us(seconds: float) -> float:
    """CPU microseconds of one unary call in a process that does nothing else."""
    with _bare_server() as (target, process), Generator("small") as generator:

        def cpu_s() -> float:
            return sum(process.cpu_times()[:2])

        load: Load = generator.run(Plan(target, mix="small", callers=16, warmup_s=1.0, seconds=seconds), cpu_s)
    return 1e6 * load.server_cpu_s / len(load.samples)


@contextmanager
def _bare_server() -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "bench.metrics_cost_call"]
    with subprocess.Popen(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip(), psutil.Process(server.pid)
        finally:
            server.kill()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.metrics_cost", description="What counting costs an image.")
    parser.add_argument("--seconds", type=float, default=5.0, help="of calls")
    parser.add_argument("--rounds", type=int, default=50, help="of 1,000 images and 1,000 batches")
    parser.add_argument("--no-record", action="store_true", help="write no record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
