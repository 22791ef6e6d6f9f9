"""The ladder on the terminal: a table of paces and one of causes, the incident's figures beside ours."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from bench.ladder.measure import Row

_INCIDENT_GAIN = 66 / 12
_LAST_LEGACY = 5
# Two runs of the same rung differ by about as much.
_NOISE = 0.05


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """All that was measured of one model."""
    console.print(_paces(rows))
    console.print(_causes(rows))
    for line in (*findings(rows), *_shares_of_cpu(rows)):
        console.print(f"  - {line}", markup=False)


def findings(rows: Sequence[Row]) -> Iterator[str]:
    """What the rows say at once: the whole gain, and rungs that made it slower."""
    for callers in sorted({row.callers for row in rows}):
        climbed = [row for row in rows if row.callers == callers]
        gain = speedup(climbed)
        if gain:
            yield (
                f"{callers_text(callers)}: rung {_LAST_LEGACY} does {gain:.1f} times the QPS of rung 0 "
                f"(the incident, one request in flight: {_INCIDENT_GAIN:.1f})"
            )
        for before, after in pairwise(climbed):
            if after.qps < (1 - _NOISE) * before.qps:
                yield (
                    f"{callers_text(callers)}: rung {after.number} ({after.name}) is slower than rung {before.number}: "
                    f"{after.qps:.1f} against {before.qps:.1f} QPS"
                )


def _shares_of_cpu(rows: Sequence[Row]) -> Iterator[str]:
    """Who of several processes uses the CPU: of each role the count and the mean."""
    for row in rows:
        roles: dict[str, list[float]] = {}
        for name, percent in row.cpu_percent_of.items():
            roles.setdefault(name.rpartition("-")[0], []).append(percent)
        used = ", ".join(f"{len(of)} x {role} {sum(of) / len(of):.0f}%" for role, of in roles.items())
        if used:
            yield f"{callers_text(row.callers)}: CPU of rung {row.number}, each in percent of a core: {used}"


def speedup(rows: Sequence[Row]) -> float | None:
    """QPS of the last legacy rung over the first's; None if one of them was not measured."""
    qps = {row.number: row.qps for row in rows}
    return qps[_LAST_LEGACY] / qps[0] if {0, _LAST_LEGACY} <= qps.keys() else None


def _paces(rows: Sequence[Row]) -> Table:
    table = Table(title=f"\n{rows[0].model}: pace; in brackets the incident's own", title_justify="left")
    table.add_column("rung")
    for title in (
        "callers",
        "QPS",
        "wall ms",
        "GPU ms",
        "GPU busy",
        "useful",
        "NVML",
        "fill",
        "p50 ms",
        "top-1 agrees",
    ):
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        told = row.incident or {}
        table.add_row(
            f"{row.number} {row.name}",
            str(row.callers),
            _beside(f"{row.qps:,.1f}", told.get("qps")),
            _beside(f"{row.wall_ms:.2f}", told.get("wall_ms")),
            _beside(_number(row.gpu_ms), told.get("gpu_ms")),
            _beside(_percent(row.gpu_busy), 100 * told.get("gpu_util", 0), "%"),
            _percent(row.useful_busy),
            _percent(row.nvml_util),
            f"{row.batch_fill:.1f}",
            f"{row.p50_ms:.1f}",
            _percent(row.top1_agreement, 1),
            end_section=row is _last_of(rows, row.number),
        )
    return table


def _causes(rows: Sequence[Row]) -> Table:
    table = Table(title="causes, means of a batch", title_justify="left")
    table.add_column("rung")
    titles = (
        "callers",
        "kernels",
        "launches",
        "under 10 us",
        "gap ms",
        "sync ms",
        "syncs",
        "host CPU",
        "settled in s",
        "batches seen",
    )
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("the doctor says")
    for row in rows:
        table.add_row(
            f"{row.number} {row.name}",
            str(row.callers),
            _number(row.kernels_per_batch, 1),
            _number(row.launches_per_batch, 1),
            _percent(row.short_kernels),
            _number(row.gap_ms),
            _number(row.sync_ms),
            _number(row.syncs_per_batch, 1),
            f"{row.host_cpu_percent:.0f}%",
            f"{row.settle_s:.1f}",
            str(row.profiled_batches or "-"),
            row.verdict or "-",
            end_section=row is _last_of(rows, row.number),
        )
    return table


def _last_of(rows: Sequence[Row], number: int) -> Row:
    return [row for row in rows if row.number == number][-1]


def callers_text(count: int) -> str:
    """As people say it."""
    return "one caller" if count == 1 else f"{count} callers"


def _beside(ours: str, theirs: float | None, unit: str = "") -> str:
    return f"{ours} \\[{theirs:g}{unit}]" if theirs else ours


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"
