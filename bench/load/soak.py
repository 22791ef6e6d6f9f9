"""What drifts over a long load: memory and latency, from its first fifth to its last."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.generator import Load
from bench.load.results import Results, rounds_of, slices_of
from bench.summary import latency

_FIFTHS = 5
# The first fifth is where caches and allocators fill.
_SETTLED = 1 / _FIFTHS


@dataclass(frozen=True, slots=True)
class Drift:
    """One figure.

    Attributes:
        first, last: mean of the first and the last fifth.
        per_hour: slope of the straight line through all but the first fifth.
    """

    first: float
    last: float
    per_hour: float

    @property
    def percent(self) -> float:
        """From the first fifth to the last."""
        return 100 * (self.last / self.first - 1)


def drift(at_s: Sequence[float], values: Sequence[float]) -> Drift:
    """Of a figure over time; both of the same length, two points at least."""
    times, figures = np.asarray(at_s), np.asarray(values)
    times, figures = times[np.isfinite(figures)], figures[np.isfinite(figures)]
    fifth = max(1, len(figures) // _FIFTHS)
    settled = times >= times[0] + _SETTLED * (times[-1] - times[0])
    slope = np.polyfit(times[settled], figures[settled], 1)[0] if settled.sum() > 1 else float("nan")
    return Drift(float(figures[:fifth].mean()), float(figures[-fifth:].mean()), 3600 * float(slope))


def drifts(load: Load, results: Results) -> dict[str, dict[str, float]]:
    """Of memory, where it was watched, and of latency."""
    slices = max(_FIFTHS, round(load.seconds / 10))
    at_s = [(number + 0.5) * load.seconds / slices for number in range(slices)]
    found = [latency(each) for each in slices_of(load.samples, load.seconds, slices)]
    figures = {"p50_ms": [each.p50_ms for each in found], "p99_ms": [each.p99_ms for each in found]}
    figures["img_s"] = rounds_of(load, slices)["img_s"]
    all_drifts = {name: drift(at_s, values) for name, values in figures.items()}
    series = results["series"]
    if len(series.get("at_s", ())) > 1:
        all_drifts["rss_mib"] = drift(series["at_s"], series["rss_mib"])
    return {
        name: {"first": each.first, "last": each.last, "percent": each.percent, "per_hour": each.per_hour}
        for name, each in all_drifts.items()
    }
