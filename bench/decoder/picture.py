"""The rungs as bars: `draw(record, stem)`, or `python -m bench.decoder.picture RECORD.json` for one that was kept."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bench.rungs import draw_records

_INK, _FAINT = "#24292f", "#d0d7de"
# Ours, the published figures and the roofline: told apart by lightness too.
_OURS, _TOLD, _FLOOR = "#1f4e8c", "#b9bec5", "#b3541e"
_THICK = 0.36
_INCHES_A_RUNG = 0.5
_DPI = 160

Rows = Sequence[Mapping[str, Any]]


def draw(record: Mapping[str, Any], stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg: pace beside its roofline to the left, GPU busy to the right."""
    rows: Rows = record["results"]["rungs"]
    with matplotlib.rc_context({"font.size": 9.5, "svg.hashsalt": "warmlane", "text.color": _INK}):
        size = (11, 1.6 + _INCHES_A_RUNG * len(rows))
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        figure.suptitle(_title(record), x=0.01, ha="left", fontsize=11, fontweight="bold")
        pace, busy = figure.subplots(1, 2, width_ratios=(1.9, 1))
        _draw_pace(pace, rows)
        _draw_busy(busy, rows)
        figure.legend(*pace.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
        paths = [stem.with_suffix(f".{kind}") for kind in ("png", "svg")]
        figure.savefig(paths[0], dpi=_DPI)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _draw_pace(axes: Axes, rows: Rows) -> None:
    axes.set_title("tokens per second of all texts (log scale)", loc="left", fontsize=10)
    axes.set_xscale("log")
    told = {place: row["published_tokens_s"] for place, row in enumerate(rows) if row["published_tokens_s"]}
    _bars(axes, -_THICK / 2, told, _TOLD, "published, of a similar 150 M model", "{:,.0f}")
    _bars(axes, _THICK / 2, {place: row["tokens_s"] for place, row in enumerate(rows)}, _OURS, "measured", "{:,.0f}")
    floors = [1e3 * row["batch"] / row["floor_ms"] for row in rows]
    axes.scatter(floors, range(len(rows)), marker="|", s=320, color=_FLOOR, label="roofline: weights over bandwidth")
    left, right = axes.get_xlim()
    axes.set_xlim(max(left / 2, 1), right * 2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [f"{row['number']}  {row['name']}" for row in rows])
    _dress(axes, rows)


def _draw_busy(axes: Axes, rows: Rows) -> None:
    axes.set_title("GPU busy, % of the wall; kernels a step", loc="left", fontsize=10)
    seen = {place: row for place, row in enumerate(rows) if row["gpu_busy"] is not None}
    bars = axes.barh(list(seen), [100 * row["gpu_busy"] for row in seen.values()], _THICK * 1.4, color=_OURS)
    labels = [f"{100 * row['gpu_busy']:.0f} %; {row['kernels']:,.0f}" for row in seen.values()]
    axes.bar_label(bars, labels, padding=3, fontsize=8, color=_INK)
    if not seen:
        axes.text(50, (len(rows) - 1) / 2, "no GPU", ha="center", va="center")
    axes.set_xlim(0, 135)
    axes.set_xticks(range(0, 101, 25))
    axes.set_yticks([])
    _dress(axes, rows)


def _bars(axes: Axes, shift: float, values: Mapping[int, float], colour: str, label: str, form: str) -> None:
    places = [place + shift for place in values]
    bars = axes.barh(places, list(values.values()), _THICK * 0.92, color=colour, label=label)
    axes.bar_label(bars, [form.format(value) for value in values.values()], padding=3, fontsize=8, color=_INK)


def _dress(axes: Axes, rows: Rows) -> None:
    axes.set_ylim(len(rows) - 0.45, -0.55)  # the first rung on top
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(_FAINT)
    axes.tick_params(length=0, colors=_INK)


def _title(record: Mapping[str, Any]) -> str:
    conditions = record["conditions"]
    millions = conditions["parameters"] / 1e6
    return f"A decoder of {millions:.0f} M parameters, rung by rung: {conditions['device']}, {record['date']}"


if __name__ == "__main__":
    sys.exit(draw_records(draw, sys.argv[1:]))
