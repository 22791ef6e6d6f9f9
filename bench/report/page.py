"""The load test's report: one HTML file that needs nothing else, not even a network."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.ladder.picture import ladder_figure
from bench.load.tables import told_lines
from bench.record import RESULTS
from bench.report.plots import latency_against_rate, over_time, svg, waterfalls

_FOLDER = Path(__file__).parent

RecordContent = Mapping[str, Any]


def write_report(record: RecordContent, path: Path, results: Path = RESULTS) -> None:
    """Write the report of a load test.

    Args:
        record: as its JSON has it.
        results: where the newest record of the ladder is looked for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(record, newest_ladder(results)), encoding="utf-8")


def render(record: RecordContent, ladder: RecordContent | None = None) -> str:
    """The page."""
    environment = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
    environment.filters["figure"] = _figure
    results = record["results"]
    runs = results["runs"]
    return environment.get_template("page.html.j2").render(
        record=record,
        results=results,
        runs=[run for run in runs if not run["step"]],
        cards=list(_cards(results)),
        told=list(told_lines(results)),
        conditions=_conditions(record["conditions"]),
        waterfalls=Markup(waterfalls(runs)),
        latency=Markup(latency_against_rate(runs, results.get("slo"))),
        time=Markup(over_time(runs)),
        ladder=Markup(svg(ladder_figure(ladder))) if ladder else None,
        ladder_record=ladder,
        raw=json.dumps(_without_courses(record), indent=1),
    )


def newest_ladder(results: Path) -> RecordContent | None:
    """The newest record of the ladder; None where there is none."""
    records = [json.loads(path.read_text()) for path in sorted(results.glob("ladder_*.json"))]
    with_rungs = [record for record in records if record["results"].get("rungs")]
    return max(with_rungs, key=lambda record: str(record["date"]), default=None)


def _cards(results: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The figures that come first: value, unit, what it is."""
    runs = {run["scenario"]: run for run in results["runs"] if not run["step"]}
    yield _figure(results["img_s"]), "img/s", f"most at a time: {results['of']}"
    if "single" in runs:
        yield _figure(runs["single"]["p50_ms"]), "ms", f"p50 of one caller; p99 {_figure(runs['single']['p99_ms'])} ms"
    if slo := results.get("slo"):
        yield _figure(slo["rate"]), "img/s", f"with p99 within {slo['slo_ms']:g} ms"
    if results["lane_busy"] is not None:
        yield f"{100 * results['lane_busy']:.0f}", "%", "of the wall the engine was busy, at the most images a second"
    checked = sum(run["checked"] for run in results["runs"])
    wrong = sum(run["errors"].get("WRONG_ANSWER", 0) for run in results["runs"])
    yield (f"{wrong:,}", "wrong", f"of {checked:,} answers that were checked") if checked else ("-", "", "not checked")


def _conditions(conditions: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _text(value)) for name, value in conditions.items() if name != "not_seen"]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return _figure(value) if isinstance(value, float) else str(value)


def _figure(value: float | None) -> str:
    """A number in as many digits as a reader needs."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def _without_courses(record: RecordContent) -> dict[str, Any]:
    """The record without what the plots show."""
    results = record["results"]
    runs = [{k: v for k, v in run.items() if k not in ("series", "gpu_series")} for run in results["runs"]]
    return {**record, "results": {**results, "runs": runs}}
