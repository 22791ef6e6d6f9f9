"""`make chaos`: what callers get while the service's processes are killed under them.

    python -m bench.chaos --seconds 300 [--frontends 2] [-- SERVER SETTINGS]

Callers make mixed calls all the while: good, damaged, oversized, cancelled and late ones, single, in batches and in
streams. Good images name themselves, so that an answer that went to the wrong caller is noticed. After a quiet time
frontends and engines are killed, frozen or paused at random, then there are quiet times again: in one of them at least
(others may use the machine) the service must be as fast as it was. The last line printed is the record, in JSON; exit
code 1 if anything did not hold.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.chaos import callers, report
from bench.chaos.outcomes import (
    Check,
    Outcome,
    Spell,
    Strike,
    check_outcomes,
    check_replacements,
    check_speed_of_failure,
    check_struck,
    spells,
)
from bench.chaos.pool import calling
from bench.chaos.probe import Probe
from bench.chaos.strikes import Schedule, Striker, same_places
from bench.chaos.tree import Footprint, Tree, check_memory, shared_files
from bench.children import Child, children
from bench.console import checks_table, finish, running_service
from bench.palette import FLAGS, FORWARD_MS
from bench.record import machine, new_record
from bench.service import Service, ServiceError

_WARM_UP_S = 3.0
_RECOVER_S = 60.0
_SETTLE_S = 8.0
_POLL_S = 0.2
_CONNECTION_AGE_S = 10
# By how much memory may differ after the same load: allocators keep what they once had.
_GROWTH, _ALLOWANCE_MIB = 0.05, 16.0


@dataclass(slots=True)
class Run:
    """What a run has gathered."""

    quiet: list[Spell] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    unready: list[Spell] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    ending: list[Check] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the chaos; 0 if everything held, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False)
    conditions = _conditions(args)
    for name, value in ({"machine": machine()} | conditions).items():
        console.print(f"{name.replace('_', ' ')}: {value}", soft_wrap=True)
    run = Run()
    try:
        _serve_and_strike(console, args, conditions["server_args"], run)
    except ServiceError as error:
        # It did not start, or did not end well: a check that failed like any other.
        run.ending.append(Check("ends with exit code 0 after SIGTERM", False, str(error)))
    checks = [*judge(run, args), *run.ending]
    held = all(check.held for check in checks)
    console.print(report.outcomes_table(run.outcomes))
    console.print(checks_table((check.name, check.held, check.found) for check in checks))
    results = report.counted(run.outcomes, run.strikes) | {
        "held": held,
        "checks": [asdict(check) for check in checks],
        "paces": [asdict(report.pace(run.outcomes, quiet)) for quiet in run.quiet],
        "footprints": [asdict(footprint) for footprint in run.footprints],
    }
    finish(console, new_record("chaos", "cpu", conditions, results), keep=not args.no_record)
    return 0 if held else 1


def judge(run: Run, args: argparse.Namespace) -> Iterator[Check]:
    """Everything that must hold of what was gathered."""
    yield from check_outcomes(run.outcomes, spells(run.strikes, run.unready, args.grace_s))
    if args.frontends:
        yield check_struck(run.strikes)
        yield check_speed_of_failure(run.outcomes, run.strikes, args.fail_within_s)
        yield check_replacements(run.strikes, args.replace_s)
    if len(run.quiet) > 1:
        before, *after = (report.pace(run.outcomes, quiet) for quiet in run.quiet)
        yield from report.check_paces(before, after, args.tolerance)
        yield from check_memory(run.footprints[0], run.footprints[-1], _GROWTH, _ALLOWANCE_MIB)
    else:
        yield Check("serves at the end as at the start", False, "the run did not get so far")


def _serve_and_strike(console: Console, args: argparse.Namespace, server_args: list[str], run: Run) -> None:
    shared_before = shared_files()
    with tempfile.TemporaryDirectory(prefix="warmlane-chaos-") as root:
        # A folder of its own for temporary files: whatever lies in it at the end has been left behind. A cache is not.
        folder = Path(root) / "temporary"
        folder.mkdir()
        environment = {FORWARD_MS: str(args.forward_ms), "TMPDIR": str(folder), "TORCHINDUCTOR_CACHE_DIR": root}
        with running_service(console, server_args, environment=environment) as service:
            tree = Tree(service.pid)
            with calling(service.target, args.callers, args.processes, args.seed) as run.outcomes:
                _phases(console, args, service, tree, run)
        files = [*os.listdir(folder), *(shared_files() - shared_before)]
    processes = tree.left_over()
    run.ending += [
        Check("ends with exit code 0 after SIGTERM", True, "it did"),
        Check("no process is left", not processes, "; ".join(processes) or "none"),
        Check("no file is left", not files, "; ".join(files) or "none"),
    ]


def _phases(console: Console, args: argparse.Namespace, service: Service, tree: Tree, run: Run) -> None:
    """A quiet time, strikes, and a quiet time again."""
    places = children(service.pid)
    _quiet(console, args.quiet_seconds, tree, run)
    if not places:
        console.print("[yellow]one process serves: nothing can be killed (--frontends)[/]")
    console.print(f"strikes for {args.seconds:g} s")
    striker = Striker(service.pid, args.seed, Schedule(pauses_s=args.pauses_s, replace_s=args.replace_s))
    with Probe(service.target) as probe:
        striker.strike_until(time.monotonic() + args.seconds, lambda strike: _tell(console, strike, tree))
        _recover(service, probe, places)
    run.strikes, run.unready = striker.strikes, probe.unready
    for _ in range(args.looks):
        _quiet(console, args.quiet_seconds, tree, run)


def _quiet(console: Console, seconds: float, tree: Tree, run: Run) -> None:
    time.sleep(_WARM_UP_S)
    started_s = time.monotonic()
    console.print(f"quiet for {seconds:g} s")
    time.sleep(seconds)
    run.quiet.append(Spell(started_s, time.monotonic()))
    run.footprints.append(tree.look())


def _tell(console: Console, strike: Strike, tree: Tree) -> None:
    came_back = "" if not strike.is_fatal else " never came back"
    if strike.replaced_s is not None:
        came_back = f" was replaced after {strike.replaced_s - strike.at_s:.2f} s"
    console.print(f"  {strike.action} {strike.role}:{came_back} {tree.look().mib:.0f} MiB in all")


def _recover(service: Service, probe: Probe, places: Sequence[Child]) -> None:
    """Wait until all are back and have had time to warm up; what is missing then fails its check."""
    until_s = time.monotonic() + _RECOVER_S
    while time.monotonic() < until_s:
        now = children(service.pid)
        settled = all(time.time() - child.process.create_time() > _SETTLE_S for child in now)
        if probe.serves and settled and same_places(places, now):
            return
        time.sleep(_POLL_S)


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    server_args = [
        *FLAGS,
        *_processes(args),
        *("--slots", "48", "--max-batch-images", str(callers.MAX_BATCH), "--stream-window", "8"),
        *("--max-image-bytes", str(callers.MAX_IMAGE_BYTES), "--log-level", "warning"),
        *args.server_args,
    ]
    names = ("seconds", "quiet_seconds", "callers", "processes", "seed", "forward_ms", "grace_s", "tolerance")
    return {name: getattr(args, name) for name in names} | {
        "server_args": server_args,
        "load_average": os.getloadavg()[0],
    }


def _processes(args: argparse.Namespace) -> list[str]:
    """The settings of the processes; none for the embedded form, in which nothing can be killed."""
    if not args.frontends:
        return []
    engines = ",".join(["cpu"] * args.engines)
    frontends = str(args.frontends)
    return [
        *("--frontends", frontends, "--devices", engines, "--engine-timeout-s", str(args.engine_timeout_s)),
        # So that callers come back to a frontend that was replaced.
        *("--max-connection-age-s", str(_CONNECTION_AGE_S)),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description="Mixed calls under kills.")
    add = parser.add_argument
    add("--seconds", type=float, default=300.0, help="how long processes are struck down, s (default 300)")
    add("--quiet-seconds", type=float, default=20.0, help="quiet time before and after, s (default 20)")
    add("--looks", type=int, default=3, help="quiet times after the strikes (default 3)")
    add("--frontends", type=int, default=2, help="frontend processes; 0: one process for all (default 2)")
    add("--engines", type=int, default=2, help="engine processes (default 2)")
    add("--callers", type=int, default=24, help="calls under way at all times (default 24)")
    add("--processes", type=int, default=1, help="processes that the callers are spread over (default 1)")
    add("--seed", type=int, default=0, help="of the schedule and the calls (default 0)")
    add("--pauses-s", type=float, nargs=2, default=(4.0, 12.0), help="shortest and longest time between strikes, s")
    add("--forward-ms", type=float, default=5.0, help="how long the model takes for a batch, ms (default 5)")
    add("--engine-timeout-s", type=float, default=2.0, help="after which an engine counts as hung, s (default 2)")
    add("--grace-s", type=float, default=3.0, help="UNAVAILABLE is right so long after a replacement, s (default 3)")
    add("--fail-within-s", type=float, default=1.5, help="a killed engine's calls must fail in this time, s")
    add("--replace-s", type=float, default=30.0, help="whatever is killed must be back in this time, s (default 30)")
    add("--tolerance", type=float, default=0.3, help="by how much the end may fall short of the start (default 0.3)")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    add("server_args", nargs="*", metavar="SETTING", help="after --: settings of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
