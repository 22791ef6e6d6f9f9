"""The report's plots, each as one piece of SVG without anything from outside."""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from bench.load.formula import TERMS

INK, FAINT, GRID = "#24292f", "#57606a", "#e4e7eb"
BLUE, DEEP, RED, GREEN = "#4a8fd4", "#1f4e8c", "#c0392b", "#2f8f5b"
# Outside the server grey, waiting pale, work strong.
_OF_TERM = ("#d3d7dc", "#b4bac2", "#c9dcf2", "#4a8fd4", "#f0dcc0", "#e3a857", "#1f4e8c", "#8fb8a2")
TERM_COLOURS = dict(zip(TERMS, _OF_TERM, strict=True))
_STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "svg.hashsalt": "warmlane",
    "svg.fonttype": "path",
}
_WIDTH = 10.4

Run = Mapping[str, Any]


def latency_against_rate(runs: Sequence[Run], slo: Mapping[str, Any] | None) -> str:
    """p50 and p99 of every schedule that was kept, and where callers who wait came to."""
    kept = sorted((run for run in runs if "rate" in run and run["p99_ms"]), key=lambda run: run["rate"])
    waiting = [run for run in runs if run["scenario"] in ("single", "closed", "stream") and run["p99_ms"]]
    if not kept and not waiting:
        return ""
    figure, (axes,) = _figure(3.9, 1)
    for name, colour in (("p50_ms", BLUE), ("p99_ms", DEEP)):
        rates, values = [run["rate"] for run in kept], [run[name] for run in kept]
        axes.plot(rates, values, "o-", color=colour, markersize=5, linewidth=0.8, label=f"{name[:3]}, on a schedule")
        axes.plot(
            [run["img_s"] for run in waiting],
            [run[name] for run in waiting],
            "D",
            color="white",
            markeredgecolor=colour,
            markersize=6,
            label=f"{name[:3]}, callers who wait",
        )
    if slo:
        axes.axhline(slo["slo_ms"], color=RED, linewidth=1, linestyle="--", label=f"limit on p99, {slo['slo_ms']:g} ms")
        if slo["rate"]:
            label = f"highest, {slo['rate']:.1f} img/s"
            axes.axvline(slo["rate"], color=GREEN, linewidth=1, linestyle="--", label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.5g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(left=0)
    axes.set_xlabel("images a second")
    axes.set_ylabel("latency, ms (log scale)")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return svg(figure)


def waterfalls(runs: Sequence[Run]) -> str:
    """Of each measurement, its terms one after the other: together they are the wall of the mean request."""
    shown = [run for run in runs if run["terms_ms"] and not run["step"]]
    if not shown:
        return ""
    rows = -(-len(shown) // 2)
    figure, axes = _figure(0.5 + 2.1 * rows, rows, 2, sharey=True)
    for place, run in zip(axes, shown, strict=False):
        _waterfall(place, run)
    for place in axes[len(shown) :]:
        place.set_visible(False)
    return svg(figure)


def _waterfall(axes: Axes, run: Run) -> None:
    terms: Mapping[str, float] = run["terms_ms"]
    wall_ms, start_ms = sum(terms.values()), 0.0
    for place, (name, mean_ms) in enumerate(terms.items()):
        axes.barh(place, mean_ms, left=start_ms, color=TERM_COLOURS[name], height=0.72)
        start_ms += mean_ms
        if mean_ms >= 0.0005 * wall_ms:
            axes.text(start_ms + 0.012 * wall_ms, place, f"{mean_ms:.3g}", va="center", fontsize=8.5, color=INK)
    axes.set_title(f"{run['scenario']}, {run['label']}: {wall_ms:.4g} ms", loc="left", fontsize=10)
    axes.set_yticks(range(len(terms)), terms)
    axes.set_ylim(len(terms) - 0.4, -0.6)
    # A term is below zero where a service says that it took longer than its callers waited.
    ends_ms = (0.0, *accumulate(terms.values()))
    axes.set_xlim(min(ends_ms), 1.12 * max(ends_ms))
    axes.set_xlabel("ms", fontsize=9)


def over_time(runs: Sequence[Run]) -> str:
    """How busy the engine was, what it did and what waited, through all measurements."""
    watched = [run for run in runs if len(run["series"].get("at_s", ())) > 1]
    if not watched:
        return ""
    panels = (
        ("engine busy, %", "lane_busy", 100.0),
        ("images a second", "img_s", 1.0),
        ("waiting for the engine", "queueing", 1.0),
        ("memory, MiB", "rss_mib", 1.0),
    )
    figure, axes = _figure(7.2, len(panels), sharex=True)
    for place, (title, name, times) in zip(axes, panels, strict=True):
        for run in watched:
            at_s, values = _course(run, run["series"], name, times)
            place.plot(at_s, values, color=DEEP, linewidth=1.4)
        place.set_title(title, loc="left", fontsize=10)
        place.set_ylim(bottom=0)
    axes[0].set_title(axes[0].get_title(loc="left"), loc="left", fontsize=10, pad=20)
    _nvml(axes[0], watched)
    axes[0].set_ylim(0, 108)
    for place in axes:
        _bands(place, watched, named=place is axes[0])
    axes[-1].set_xlabel("seconds")
    return svg(figure)


def _course(run: Run, series: Mapping[str, Any], name: str, times: float) -> tuple[list[float], list[float]]:
    at_s = [run["began_s"] + at_s for at_s in series["at_s"]]
    return at_s, [float("nan") if value is None else times * value for value in series[name]]


def _nvml(axes: Axes, runs: Sequence[Run]) -> None:
    """NVML's own figure beside the lanes': never the same one."""
    seen = [run for run in runs if run["gpu_series"].get("at_s")]
    for run in seen:
        axes.plot(*_course(run, run["gpu_series"], "util_percent", 1.0), color=BLUE, linewidth=1, linestyle=":")
    if seen:
        axes.set_title("engine busy, % (dotted: NVML's utilisation)", loc="left", fontsize=10, pad=20)


def _bands(axes: Axes, runs: Sequence[Run], *, named: bool) -> None:
    """A band for each scenario."""
    for shade, name in enumerate(dict.fromkeys(run["scenario"] for run in runs)):
        of = [run for run in runs if run["scenario"] == name]
        for number, run in enumerate(of):
            start, stop = run["began_s"], run["began_s"] + run["series"]["at_s"][-1]
            axes.axvspan(start, stop, color=("#eef3f9", "#f7f2e9")[shade % 2], zorder=0)
            if named and number == 0:
                axes.text(start, 110, name, fontsize=8.5, color=FAINT, va="bottom")


def _figure(height: float, rows: int, columns: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
    for place in axes:
        place.grid(color=GRID, linewidth=0.7)
        place.set_axisbelow(True)
        place.spines[["top", "right"]].set_visible(False)
        place.spines[["left", "bottom"]].set_color(GRID)
        place.tick_params(length=0, colors=FAINT)
    return figure, axes


def svg(figure: Figure) -> str:
    """The figure as an element to be put into a page."""
    file = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return re.sub(r"<metadata>.*?</metadata>", "", file.getvalue()[file.getvalue().index("<svg") :], flags=re.DOTALL)
