"""From what single calls measured to the numbers that are reported. Times are in milliseconds."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warmlane.results import Timings
from warmlane.v1 import classifier_pb2 as pb

STAGES = ("admission", "decode", "queue", "transfer", "forward", "reply")
COLUMNS = ("latency", "lag", "at_s", *STAGES, "total", "batch_fill")

Samples = NDArray[np.float32]  # [calls, len(COLUMNS)]


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of what the callers waited, in milliseconds; NaN where nothing was answered."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure measured in several rounds: its median, and how far the rounds lie apart."""

    median: float
    low: float
    high: float


class Rows:
    """Calls as they come, 44 bytes each."""

    def __init__(self) -> None:
        self._cells = array("f")

    def append(self, row: Sequence[float]) -> None:
        """Add one, of `sample_row`."""
        self._cells.extend(row)

    def samples(self) -> Samples:
        """All of them."""
        return np.frombuffer(self._cells, dtype=np.float32).reshape(-1, len(COLUMNS)).copy()


def sample_row(
    latency_ms: float, timings: Timings | pb.Timings, lag_ms: float = 0.0, at_s: float = 0.0
) -> tuple[float, ...]:
    """One call as a row of `Samples`.

    Args:
        lag_ms: by how much it was sent later than scheduled; part of the latency.
        at_s: when, in seconds from the start of the measurement.
    """
    stages = (getattr(timings, f"{stage}_ms") for stage in STAGES)
    return (latency_ms, lag_ms, at_s, *stages, timings.total_ms, timings.batch_fill)


def to_samples(rows: Sequence[Sequence[float]]) -> Samples:
    """Rows as an array, also if there are none."""
    return np.asarray(rows, dtype=np.float32).reshape(-1, len(COLUMNS))


def column(samples: Samples, name: str) -> NDArray[np.float32]:
    """One of COLUMNS of all calls."""
    return samples[:, COLUMNS.index(name)]


def latency(samples: Samples) -> Latency:
    """Percentiles of the callers' latency, interpolated linearly between calls."""
    values = column(samples, "latency")
    if not len(values):
        return Latency(*[float("nan")] * 4)
    return Latency(*(float(value) for value in np.percentile(values, [50, 90, 99, 100])))


def stage_means(samples: Samples) -> dict[str, float]:
    """Where the mean call's time went: the server's stages, and what the caller waited beyond them."""
    means = {stage: float(column(samples, stage).mean()) for stage in STAGES} if len(samples) else {}
    if means:
        waited_ms = float(column(samples, "latency").mean()) - float(column(samples, "lag").mean())
        means["outside the server"] = waited_ms - float(column(samples, "total").mean())
    return means


def stages_gap_ms(samples: Samples) -> float:
    """By how much the stages fail to sum to the server's total, in the worst call. Rounding alone leaves 0.01."""
    if not len(samples):
        return 0.0
    sums = sum(column(samples, stage) for stage in STAGES)
    return float(np.abs(sums - column(samples, "total")).max())


def batch_fill(samples: Samples) -> float:
    """Mean real images in a forward: a batch of n carries n of the calls, so calls are weighted by 1/n; NaN if none."""
    return float(len(samples) / (1.0 / column(samples, "batch_fill")).sum()) if len(samples) else float("nan")


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of several rounds."""
    return Spread(float(np.median(values)), min(values), max(values))
