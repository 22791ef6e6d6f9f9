"""What changed between two records of the load test: `python -m bench.compare A.json B.json`.

Each measurement has several rounds, and its figures differ between them: that is its noise. A change counts as one only
if all rounds of one record lie beyond all rounds of the other, which happens by chance in 1 of 126 cases with five
rounds each. Records of different days were also made at different speeds of the machine: where both have calibrated,
the throughput is compared as a ratio to that too. Exit code 2 if the records cannot be compared.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.load.results import ROUND_FIGURES

# With fewer, rounds lie beyond each other by chance in over 1 of 35 cases.
_FEWEST_ROUNDS = 4
_HIGHER_IS_BETTER = {"img_s", "img_s per calibration unit"}
_WITHOUT_ROUNDS = ("batch_fill", "lane_busy", "server_cpu_percent", "generator_cpu_percent", "rss_mib")

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both records.

    Attributes:
        before, after: its values in each round; one value where it has no rounds.
    """

    run: str
    name: str
    before: Sequence[float]
    after: Sequence[float]

    @property
    def percent(self) -> float:
        """Of the means."""
        return 100 * (fmean(self.after) / fmean(self.before) - 1) if fmean(self.before) else math.nan

    @property
    def verdict(self) -> str:
        """In words: "better", "worse", "within noise", or that it cannot be told."""
        if min(len(self.before), len(self.after)) < _FEWEST_ROUNDS:
            return "too few rounds to tell"
        is_higher, is_lower = min(self.after) > max(self.before), max(self.after) < min(self.before)
        if not is_higher and not is_lower:
            return "within noise"
        return "better" if is_higher == (self.name in _HIGHER_IS_BETTER) else "worse"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what changed; 0 if the records could be compared, else 2."""
    arguments = sys.argv[1:] if argv is None else argv
    console = Console(highlight=False)
    if len(arguments) != 2:
        console.print("usage: python -m bench.compare A.json B.json")
        return 2
    try:
        before, after = (_record(path) for path in arguments)
    except ValueError as error:
        console.print(str(error), markup=False)
        return 2
    found = list(changes(before, after))
    if not found:
        console.print("[red]nothing to compare:[/] the records have no measurement in common that has rounds")
        return 2
    for line in differences(before, after):
        console.print(f"  - {line}", markup=False)
    console.print(_table(found))
    return 0


def _record(path: str) -> Content:
    try:
        content: Content = json.loads(Path(path).read_text())
        if "results" not in content:
            raise KeyError("results")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path}: not a record of bench.load") from None
    return content


def changes(before: Content, after: Content) -> Iterator[Change]:
    """Of each measurement that both records have, its figures."""
    others = {_key(run): run for run in after["results"].get("runs", ()) if not run["step"]}
    for run in before["results"].get("runs", ()):
        other = others.get(_key(run))
        if not run["step"] and other:
            yield from _figures(run, other)
            yield from _calibrated(run, other, _units(before), _units(after))


def differences(before: Content, after: Content) -> Iterator[str]:
    """What was not the same in the two runs, in words."""
    for part in ("conditions", "versions"):
        for name in sorted(before[part].keys() | after[part].keys()):
            one, other = before[part].get(name, "-"), after[part].get(name, "-")
            if one != other and name not in ("load_average_before", "scenario"):
                yield f"{name.replace('_', ' ')}: {one} against {other}"
    for record, which in ((before, "first"), (after, "second")):
        if not record["results"].get("valid", True):
            yield f"the {which} record is of an invalid run"


def _key(run: Content) -> str:
    """A rate that was searched for differs each time; the sweep is one measurement all the same."""
    return str(run["scenario"]) if run["scenario"] in ("sweep", "open") else f"{run['scenario']}, {run['label']}"


def _figures(run: Content, other: Content) -> Iterator[Change]:
    for name in ROUND_FIGURES:
        yield Change(_key(run), name, _numbers(run["rounds"][name]), _numbers(other["rounds"][name]))
    for name in _WITHOUT_ROUNDS:
        if run.get(name) is not None and other.get(name) is not None:
            yield Change(_key(run), name, [run[name]], [other[name]])


def _calibrated(run: Content, other: Content, units: float, other_units: float) -> Iterator[Change]:
    if units and other_units:
        before = [img_s / units for img_s in _numbers(run["rounds"]["img_s"])]
        after = [img_s / other_units for img_s in _numbers(other["rounds"]["img_s"])]
        yield Change(_key(run), "img_s per calibration unit", before, after)


def _units(record: Content) -> float:
    units_s = record["results"].get("calibration_units_s")
    return fmean(units_s) if units_s else 0.0


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None] or [math.nan]


def _table(found: Sequence[Change]) -> Table:
    table = Table(title="What changed (in brackets: lowest and highest round)", title_justify="left", box=None)
    for name in ("", "figure", "before", "after", "change", ""):
        table.add_column(name, justify="right" if name in ("before", "after", "change") else "left")
    colours = {"better": "green", "worse": "red"}
    for number, change in enumerate(found):
        is_first = not number or found[number - 1].run != change.run
        colour = colours.get(change.verdict, "default")
        table.add_row(
            change.run if is_first else "",
            change.name.replace("_", " "),
            _spread(change.before),
            _spread(change.after),
            f"{change.percent:+.1f} %",
            f"[{colour}]{change.verdict}[/]",
        )
    return table


def _spread(values: Sequence[float]) -> str:
    around = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
    return f"{fmean(values):.4g}{around}"


if __name__ == "__main__":
    sys.exit(main())
