"""The command line of the load test."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench.mix import MIXES
from pipeline.cpus import available_cpus
from server import settings as server_settings

SCENARIOS = {
    "single": "one caller, who waits for each answer",
    "closed": "--callers callers, who wait for each answer",
    "batch": "calls of --batch-images images each",
    "stream": "images in streams",
    "open": "calls on a random schedule, --rate a second, whatever became of those before",
    "sweep": "the highest rate whose p99 stays within --slo-ms",
    "soak": "--minutes of load, and what drifts",
}
_DEFAULT = "single,closed,batch,stream,open,sweep"


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; the command line says what each means."""

    target: str
    metrics: str
    gpu: int
    scenario: tuple[str, ...]
    callers: tuple[int, ...]
    processes: int
    calls: str
    connections: int
    batch_images: int
    rate: float
    slo_ms: float
    step_seconds: float
    minutes: float
    seconds: float
    warmup_seconds: float
    rounds: int
    mix: str
    images: Path | None
    no_ceiling: bool
    no_record: bool
    report: Path | None
    server_args: tuple[str, ...]

    @property
    def connections_each(self) -> int:
        """Connections of each process: one to each frontend, or to each address of the target."""
        if self.target:
            return self.connections or 1 + self.target.count(",")
        return self.connections or max(1, server_settings.parse(self.server_args).frontends)

    @property
    def files(self) -> str:
        """As `bench.mix.mix_images` takes it."""
        return str(self.images.resolve()) if self.images else self.mix


def parse(argv: Sequence[str] | None) -> Options:
    """Options from a command line; ends the process where it is wrong."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.images and not args.images.is_dir():
        parser.error(f"--images {args.images}: no such folder")
    if args.target and args.server_args:
        parser.error("settings after -- are for a server that is started here, not for the one at --target")
    for name in ("callers", "scenario", "server_args"):
        setattr(args, name, tuple(getattr(args, name)))
    return Options(**{field.name: getattr(args, field.name) for field in fields(Options)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load",
        description="Load test of a warmlane server.",
        epilog="\n".join(["scenarios:", *(f"  {name:8}{what}" for name, what in SCENARIOS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_what(parser)
    _add_load(parser)
    _add_outcome(parser)
    return parser


def _add_what(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--target", default="", metavar="HOST:PORT", help="a server that runs already (default: one is started)")
    add("--metrics", default="", metavar="URL", help="of that server, such as http://127.0.0.1:9100/metrics")
    add("--gpu", type=int, default=0, metavar="N", help="the GPU that NVML watches, as NVML counts (default 0)")
    add("--mix", choices=tuple(MIXES), default="imagenet", help="which files (default imagenet)")
    add("--images", type=Path, metavar="DIR", help="a folder of your own files instead, a thousand at most")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server that is started")


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scenario", type=_scenarios, default=_DEFAULT, metavar="NAME[,NAME...]", help=f"default {_DEFAULT}")
    add("--callers", type=_counts, default=[16], metavar="N[,N...]", help="images under way at all times (default 16)")
    processes = max(2, available_cpus() // 4)
    add("--processes", type=_count, default=processes, help=f"of the load generator (default {processes})")
    calls = "how `closed` and `soak` call: as users do, or encoded beforehand, which costs callers less"
    add("--calls", choices=("client", "unary", "stream"), default="client", help=f"{calls} (default client)")
    add("--connections", type=int, default=0, help="of each process (default: one to each frontend)")
    add("--batch-images", type=_count, default=8, metavar="N", help="images of a batch call (default 8)")
    add("--rate", type=_positive, default=0.0, help="of `open` and `soak`, images/s (default: 0.7 of the peak; none)")
    add("--slo-ms", type=_positive, default=300.0, help="limit on p99 for `sweep`, ms (default 300)")
    add("--step-seconds", type=_positive, default=6.0, help="length of a step of `sweep`, s (default 6)")
    add("--minutes", type=_positive, default=5.0, help="length of `soak`, minutes (default 5)")
    add("--seconds", type=_positive, default=10.0, help="length of the other measurements, s (default 10)")
    add("--warmup-seconds", type=_time, default=2.0, help="calls before each that do not count, s (default 2)")
    add("--rounds", type=_count, default=5, help="slices of a measurement that tell its spread (default 5)")


def _add_outcome(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--no-ceiling", action="store_true", help="do not measure what the machine could do at best")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("--report", type=Path, metavar="FILE", help="where the HTML report goes (default: beside the record)")


def _scenarios(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise argparse.ArgumentTypeError(f"no scenario {unknown[0]!r}: they are {', '.join(SCENARIOS)}")
    return names


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _positive(text: str) -> float:
    number = _time(text)
    if not number:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number


def _time(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number
