"""What benchmarks that climb rung by rung have in common."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.table import Table


class _Rung(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def change(self) -> str: ...

    @property
    def needs_gpu(self) -> bool: ...


R = TypeVar("R", bound=_Rung)


def pick(rungs: Sequence[R], numbers: Sequence[int]) -> tuple[R, ...]:
    """Those with these numbers, from the bottom up.

    Raises:
        ValueError: there is no such rung.
    """
    if unknown := sorted(set(numbers) - {rung.number for rung in rungs}):
        raise ValueError(f"no rung {unknown[0]}: they are 0 to {rungs[-1].number}")
    return tuple(rung for rung in rungs if rung.number in numbers)


def rungs_table(rungs: Iterable[_Rung]) -> Table:
    """What each rung changes."""
    table = Table(title="Rungs", title_justify="left", show_header=False, box=None)
    for rung in rungs:
        table.add_row(f"{rung.number} {rung.name}", rung.change + (" (needs a GPU)" if rung.needs_gpu else ""))
    return table


def draw_records(draw: Callable[[dict[str, Any], Path], Iterable[Path]], paths: Sequence[str]) -> int:
    """Draw a picture beside each record; the exit status of a command that does no more."""
    for path in map(Path, paths):
        for drawn in draw(json.loads(path.read_text()), path.with_suffix("")):
            print(drawn)
    return 0
