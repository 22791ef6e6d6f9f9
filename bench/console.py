"""What the bench tools show while they work."""

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

from bench.record import RESULTS, Record
from bench.service import Service

_QUIET_S = 10.0
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+ \S+ (?:[\w-]+ )?[\w.]+: (.+)$", re.MULTILINE)


@contextlib.contextmanager
def running_service(
    console: Console, args: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """A `Service` whose start is shown.

    Raises:
        ServiceError: as `Service`.
    """
    with contextlib.ExitStack() as stack:
        with console.status("starting the server") as status:
            progress = _Progress(console, status)
            service = stack.enter_context(Service(args, environment=environment, progress=progress))
        console.print(f"the server serves at {service.target}, {service.start_s:.1f} s after its start")
        yield service


def finish(console: Console, record: Record, *, keep: bool, picture: str = "") -> None:
    """Write the record, unless told not to, and end with its line of JSON.

    Args:
        picture: a module whose `draw(record, stem)` draws it; where that cannot be imported, a line says so.
    """
    if keep:
        path = record.write()
        for written in (path, *_drawn(console, record, path.stem, picture)):
            console.print(f"written: bench/results/{written.name}", soft_wrap=True)
    print(record.line(), flush=True)


def _drawn(console: Console, record: Record, stem: str, picture: str) -> Iterator[Path]:
    if not picture:
        return
    try:
        module = importlib.import_module(picture)
    except ImportError as error:
        console.print(f"no picture: {error}; elsewhere: python -m {picture} RECORD.json", markup=False)
        return
    yield from module.draw(asdict(record), RESULTS / stem)


def conditions_table(conditions: Mapping[str, Any]) -> Table:
    """What was chosen."""
    table = Table(title="Conditions", title_justify="left", show_header=False, box=None)
    for name, value in conditions.items():
        table.add_row(name.replace("_", " "), f"{value:,.6g}" if isinstance(value, float) else str(value))
    return table


def checks_table(checks: Iterable[tuple[str, bool, str]]) -> Table:
    """One row a check: its name, whether it held, what was found."""
    table = Table(title="What must hold", title_justify="left", box=None, show_header=False)
    for name, held, found in checks:
        table.add_row("[green]held[/]" if held else "[red]FAILED[/]", name, found)
    return table


class _Progress:
    """A line that changes on a terminal; elsewhere a new line from time to time."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._next_s = 0.0

    def __call__(self, elapsed_s: float, log_tail: str) -> None:
        text = f"starting the server, {elapsed_s:.0f} s: {_last_message(log_tail)}"
        if self._console.is_terminal:
            self._status.update(text)
        elif elapsed_s >= self._next_s:
            self._console.print(text, markup=False, highlight=False)
            self._next_s = elapsed_s + _QUIET_S


def _last_message(log_tail: str) -> str:
    """What the server itself wrote last, without time and origin; libraries write in forms of their own."""
    messages = _LOG_LINE.findall(log_tail)
    return messages[-1] if messages else "importing torch"
