"""The ladder as bars: `draw(record, stem)`, or `python -m bench.ladder.picture RECORD.json` for one that was kept."""

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
# One caller, many callers, the incident: told apart by lightness too.
_ONE, _MANY, _TOLD = "#6ea8dc", "#1f4e8c", "#b9bec5"
_THICK = 0.26
_STYLE: Any = {"font.size": 9.5, "svg.hashsalt": "warmlane", "text.color": _INK}
_INCHES_A_RUNG = 0.62
_DPI = 160

Rows = Sequence[Mapping[str, Any]]


def draw(record: Mapping[str, Any], stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg."""
    figure = ladder_figure(record)
    paths = [stem.with_suffix(f".{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context(_STYLE):
        figure.savefig(paths[0], dpi=_DPI)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def ladder_figure(record: Mapping[str, Any]) -> Figure:
    """A row of axes for each model, pace to the left and GPU busy to the right."""
    rows: Rows = record["results"]["rungs"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    count = max(len(_numbers(_of(rows, model))) for model in models)
    with matplotlib.rc_context(_STYLE):
        size = (11, 1.35 + len(models) * (0.75 + _INCHES_A_RUNG * count))
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        figure.suptitle(_title(record), x=0.01, ha="left", fontsize=11, fontweight="bold")
        grid = figure.subplots(len(models), 2, squeeze=False, width_ratios=(1.25, 1))
        for (pace, busy), model in zip(grid, models, strict=True):
            _draw_pace(pace, _of(rows, model), model)
            _draw_busy(busy, _of(rows, model))
        handles, labels = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False)
    return figure


def _draw_pace(axes: Axes, rows: Rows, model: str) -> None:
    axes.set_title(f"{model}: images per second of one worker (log scale)", loc="left", fontsize=10)
    axes.set_xscale("log")
    _bars(axes, rows, "qps", lambda incident: incident["qps"], "{:,.0f}")
    left, right = axes.get_xlim()
    axes.set_xlim(max(left / 2, 1), right * 2.2)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.minorticks_off()
    axes.set_yticks(range(len(_numbers(rows))), [f"{number}  {_name(rows, number)}" for number in _numbers(rows)])


def _draw_busy(axes: Axes, rows: Rows) -> None:
    axes.set_title("GPU busy, % of the wall", loc="left", fontsize=10)
    percent = [{**row, "busy": _times_100(row["gpu_busy"])} for row in rows]
    _bars(axes, percent, "busy", lambda incident: 100 * incident["gpu_util"], "{:.0f}")
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 25))
    axes.set_yticks([])


def _bars(axes: Axes, rows: Rows, figure: str, told: Any, form: str) -> None:
    """Three bars a rung, from above: the incident, one caller, many."""
    numbers, few = _numbers(rows), min(row["callers"] for row in rows)
    for shift, colour, label, values in (
        (-_THICK, _TOLD, "the incident (one request in flight)", _told(rows, told)),
        (0.0, _ONE, "one caller", _values(rows, figure, lambda callers: callers == few)),
        (_THICK, _MANY, _many_label(rows), _values(rows, figure, lambda callers: callers != few)),
    ):
        places = [numbers.index(number) + shift for number in values]
        bars = axes.barh(places, list(values.values()), _THICK * 0.92, color=colour, label=label)
        axes.bar_label(bars, [form.format(value) for value in values.values()], padding=3, fontsize=8, color=_INK)
    axes.set_ylim(len(numbers) - 0.45, -0.55)  # the first rung on top
    axes.grid(axis="x", color=_FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(_FAINT)
    axes.tick_params(length=0, colors=_INK)


def _told(rows: Rows, told: Any) -> dict[int, float]:
    return {row["number"]: told(row["incident"]) for row in rows if row.get("incident")}


def _values(rows: Rows, figure: str, wanted: Any) -> dict[int, float]:
    return {row["number"]: row[figure] for row in rows if wanted(row["callers"]) and row[figure] is not None}


def _many_label(rows: Rows) -> str:
    return f"{max(row['callers'] for row in rows)} callers"


def _title(record: Mapping[str, Any]) -> str:
    return f"The incident, rung by rung: {record['conditions'].get('device', record['device'])}, {record['date']}"


def _of(rows: Rows, model: str) -> Rows:
    return [row for row in rows if row["model"] == model]


def _numbers(rows: Rows) -> list[int]:
    return sorted({row["number"] for row in rows})


def _name(rows: Rows, number: int) -> str:
    return str(next(row["name"] for row in rows if row["number"] == number))


def _times_100(share: float | None) -> float | None:
    return None if share is None else 100 * share


if __name__ == "__main__":
    sys.exit(draw_records(draw, sys.argv[1:]))
