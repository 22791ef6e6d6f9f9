"""From one measurement to the numbers of the record."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.generator import Load, Plan
from bench.load.formula import accounted, terms_ms
from bench.load.watch import Watched
from bench.summary import Samples, batch_fill, column, latency, stages_gap_ms
from bench.targets import QUIET_PERCENT
from pipeline.cpus import available_cpus

ROUND_FIGURES = ("img_s", "p50_ms", "p99_ms")
MOST_MISSED = 0.02
# The stages come as float32 milliseconds: what is lost in rounding is far below this.
_LARGEST_GAP_MS = 0.05

Results = dict[str, Any]


def summarize(load: Load, plan: Plan, watched: Watched, rounds: int) -> Results:
    """All figures of one measurement.

    Args:
        rounds: slices of the window that each have figures of their own, so that there is a spread.
    """
    terms = terms_ms(load.samples)
    gap_ms = stages_gap_ms(load.samples)
    results: Results = {"img_s": load.img_s, **asdict(latency(load.samples)), "terms_ms": terms}
    if not plan.rate:
        callers = plan.callers * (plan.images if plan.way == "batch" else 1)
        results["accounted"] = accounted(terms, load.samples, load.in_calls_s, callers, load.seconds)
    results |= _batches(load, watched) | _costs(load, watched) | _schedule(load, plan) | _checks(load)
    results |= {"calls": len(load.samples), "errors": dict(load.errors), "stages_gap_ms": gap_ms}
    results["rounds"] = rounds_of(load, rounds)
    results["series"], results["gpu_series"] = watched.series, watched.gpu_series
    right = not load.unexpected and len(load.samples) > 0 and gap_ms <= _LARGEST_GAP_MS
    results["valid"] = right and (not plan.rate or bool(results["generator_valid"]))
    return results


def _batches(load: Load, watched: Watched) -> Results:
    found: Results = {
        "batch_fill": batch_fill(load.samples),
        "lane_busy": watched.lane_busy,
        "useful_busy": watched.lane_busy * watched.useful,
    }
    if watched.series:
        found |= {"in_house": watched.in_house, "queueing": watched.queueing, "server_stages_ms": watched.stages_ms}
    if watched.gpu:
        found["nvml"] = watched.gpu
    return found


def _costs(load: Load, watched: Watched) -> Results:
    found: Results = {"generator_cpu_percent": 100 * load.cpu_s / load.seconds}
    if watched.cpu_percent_of:
        found["server_cpu_percent"] = sum(watched.cpu_percent_of.values())
        found["cpu_percent_of"] = watched.cpu_percent_of
        mine = found["server_cpu_percent"] + found["generator_cpu_percent"]
        found["others_cpu_percent"] = max(0.0, watched.machine_cpu_percent - mine)
        found["rss_mib"] = sum(watched.rss_mib_of.values())
        found["rss_mib_of"] = watched.rss_mib_of
    return found


def _schedule(load: Load, plan: Plan) -> Results:
    """Whether the generator did what was planned. Callers who wait have no rate to miss, but may be too busy."""
    if not plan.rate:
        return {"generator_valid": load.too_slow == 0}
    lags = column(load.samples, "lag")
    return {
        "rate": plan.rate,
        "due": load.due,
        "missed": load.missed,
        "lag_p99_ms": float(np.percentile(lags, 99)) if len(lags) else float("nan"),
        "generator_valid": load.missed <= MOST_MISSED,
    }


def _checks(load: Load) -> Results:
    return {"checked": load.checked, "top1_agreement": load.agreed / load.checked} if load.checked else {"checked": 0}


def is_quiet(others_cpu_percent: float) -> bool:
    """Whether other programs, in percent of one core, left the machine to the service and its callers."""
    return others_cpu_percent <= QUIET_PERCENT * available_cpus()


def share_within(samples: Samples, limit_ms: float, due: int) -> float:
    """Of the calls that were due, those answered within a limit; what was refused or gave up counts as late."""
    return float((column(samples, "latency") <= limit_ms).sum()) / due if due else 0.0


def rounds_of(load: Load, rounds: int) -> dict[str, list[float]]:
    """The figures of each of so many equal slices of the window."""
    slices = slices_of(load.samples, load.seconds, rounds)
    seconds = load.seconds / rounds
    found = [latency(each) for each in slices]
    return {
        "img_s": [len(each) / seconds for each in slices],
        "p50_ms": [each.p50_ms for each in found],
        "p99_ms": [each.p99_ms for each in found],
    }


def slices_of(samples: Samples, seconds: float, count: int) -> Sequence[Samples]:
    """The samples of each of so many equal slices of a window."""
    edges = np.linspace(0, seconds, count + 1)[1:-1]
    which = np.searchsorted(edges, column(samples, "at_s"))
    return [samples[which == number] for number in range(count)]
