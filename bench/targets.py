"""What was measured in turns, held against the targets of the service."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from bench.summary import spread

FEW_CALLS, MANY_CALLS = 1_000, 10_000
QUIET_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class Bares:
    """The machine at its best: images per second of a full batch, milliseconds of one image alone."""

    full_img_s: float
    one_ms: float


@dataclass(frozen=True, slots=True)
class Round:
    """What was measured between two looks at the bare forward.

    Attributes:
        engine_img_s: batcher, lane and forward in one process, pixels in memory.
        service_img_s: over gRPC, JPEGs, enough callers to fill batches.
        batch_fill: of the service, mean.
        single_p50_ms: one caller.
        single_decode_ms: of those calls, median.
        single_rest_ms: of those calls, all but decode and forward, median.
        others_cpu_percent: of all cores, used by other processes while nothing was measured: what spoils a round.
    """

    engine_img_s: float
    service_img_s: float
    batch_fill: float
    server_cpu_percent: float
    single_p50_ms: float
    single_decode_ms: float
    single_rest_ms: float
    others_cpu_percent: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One number beside its target.

    Attributes:
        low, high: of the rounds.
        target: None for a number that only explains others.
        at_most: the target is a ceiling; else a floor.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float
    target: float | None = None
    at_most: bool = True

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def speed_figures(bares: Sequence[Bares], rounds: Sequence[Round]) -> Iterator[Figure]:
    """What the service makes of the bare forward. `bares` has one more than `rounds`: they enclose them."""
    full = [(a.full_img_s + b.full_img_s) / 2 for a, b in itertools.pairwise(bares)]
    one = [(a.one_ms + b.one_ms) / 2 for a, b in itertools.pairwise(bares)]
    pairs = list(zip(rounds, full, strict=True))
    yield _figure("bare forward, full batch", "img/s", full)
    yield _figure("service over gRPC", "img/s", [each.service_img_s for each in rounds])
    yield _figure("  of the bare forward", "", [each.service_img_s / best for each, best in pairs], 0.85, at_most=False)
    yield _figure("  images in a batch", "mean", [each.batch_fill for each in rounds])
    yield _figure("engine fed from memory", "img/s", [each.engine_img_s for each in rounds])
    yield _figure("  of the bare forward", "", [each.engine_img_s / best for each, best in pairs], 0.85, at_most=False)
    yield _figure("bare forward, one image", "ms", one)
    yield _figure("one caller, p50", "ms", [each.single_p50_ms for each in rounds])
    yield _figure("  of it decode", "ms", [each.single_decode_ms for each in rounds])
    added = [each.single_p50_ms - each.single_decode_ms - least for each, least in zip(rounds, one, strict=True)]
    yield _figure("  added to bare forward and decode", "ms", added, 1.5)
    yield _figure("  all but its own forward and decode", "ms", [each.single_rest_ms for each in rounds])
    yield _figure("CPU that others used", "%", [each.others_cpu_percent for each in rounds])


def is_quiet(rounds: Sequence[Round]) -> bool:
    """Whether others left the CPU alone; threads that meet at every loop lose far more than what others take."""
    return max(each.others_cpu_percent for each in rounds) <= QUIET_PERCENT


def memory_figure(rss_mib: Mapping[str, float]) -> Figure:
    """Growth from few calls to many, in percent."""
    few, many = rss_mib[str(FEW_CALLS)], rss_mib[str(MANY_CALLS)]
    name = f"memory after {MANY_CALLS:,} calls against {FEW_CALLS:,}"
    return _figure(name, "% more", [100 * (many / few - 1)], 5.0)


def start_figures(cold_s: float, warm_s: Sequence[float]) -> Iterator[Figure]:
    """From the start of the process to SERVING."""
    yield _figure("start to SERVING, nothing cached", "s", [cold_s], 60.0)
    yield _figure("start to SERVING, compiled before", "s", warm_s, 15.0)


def _figure(
    name: str, unit: str, values: Sequence[float], target: float | None = None, *, at_most: bool = True
) -> Figure:
    found = spread(values)
    return Figure(name, unit, found.median, found.low, found.high, target, at_most)


def figures_table(figures: Sequence[Figure], *, quiet: bool = True) -> Table:
    """The figures beside their targets, for people."""
    shown = Table(title="\nFigures", title_justify="left")
    for title in ("figure", "median", "lowest", "highest", "target", ""):
        shown.add_column(title, justify="left" if title in ("figure", "") else "right")
    verdicts: dict[bool | None, str] = {True: "[green]PASS[/]", False: "[red]short[/]", None: ""}
    if not quiet:
        verdicts = dict.fromkeys((True, False), "[yellow]void[/]") | {None: ""}
    for figure in figures:
        sign = "<=" if figure.at_most else ">="
        target = "" if figure.target is None else f"{sign} {figure.target:g} {figure.unit}".strip()
        numbers = (f"{value:.2f}" for value in (figure.value, figure.low, figure.high))
        shown.add_row(f"{figure.name}, {figure.unit}".rstrip(", "), *numbers, target, verdicts[figure.met])
    return shown
