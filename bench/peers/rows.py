"""What a comparison finds: a point for each load, a row for each service."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.peers.callers import Heard, Order, percentile

MEASURED, FAILED, WRONG = "measured", "failed", "wrong"
_LARGEST_LAG_MS = 20.0
_BUSY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """One load on one service.

    Attributes:
        rate: calls a second of an open loop; 0 is a closed loop of so many callers.
        cpu: cores that the server's processes used; `generator_cpu` the callers'.
        lag_p99_ms: how late the calls of an open loop were sent, 99th percentile.
        agreement: share of answers with the reference's best class.
        valid: whether nothing failed and the callers did what they were to do.
    """

    callers: int
    rate: float
    img_s: float
    p50_ms: float
    p99_ms: float
    cpu: float
    generator_cpu: float
    lag_p99_ms: float
    agreement: float
    errors: dict[str, int]
    valid: bool


@dataclass(slots=True)
class Row:
    """What became of one service.

    Attributes:
        status: MEASURED, FAILED (not installed, not started, or died) or WRONG (other answers than the reference's).
        img_s: the most at a p99 within the limit, None if no load was; median of `img_s_of`, which has the same load
            after each start, minutes apart: how far a machine's speed wanders.
        p50_ms, p99_ms, cpu: at the rate that is the same for all; medians of `paced`, a point for each start.
        cold_start_s: from the start of the process to the first answer, nothing compiled before; `warm_start_s`
            with what that has compiled, the median of the starts.
        rss_mib: of all processes after the closed loops.
        tried: of each layout that was tried, its most images a second.
    """

    name: str
    status: str = MEASURED
    reason: str = ""
    version: str = ""
    img_s: float | None = None
    callers: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu: float | None = None
    rss_mib: float | None = None
    processes: int | None = None
    cold_start_s: float | None = None
    warm_start_s: float | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    closed: list[Point] = field(default_factory=list)
    paced: list[Point] = field(default_factory=list)
    img_s_of: list[float] = field(default_factory=list)
    warm_starts_s: list[float] = field(default_factory=list)
    tried: list[dict[str, Any]] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)

    def sum_up(self) -> None:
        """Set the medians."""
        self.img_s = _median(self.img_s_of)
        self.warm_start_s = _median(self.warm_starts_s)
        self.p50_ms = _median([point.p50_ms for point in self.paced])
        self.p99_ms = _median([point.p99_ms for point in self.paced])
        self.cpu = _median([point.cpu for point in self.paced])

    def best(self) -> Point | None:
        """The closed loop with the most images a second."""
        return max((point for point in self.closed if point.valid), key=lambda point: point.img_s, default=None)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def make_point(order: Order, heard: Heard, processes: int) -> Point:
    """The figures of a load, and whether they mean anything."""
    generator_cpu = heard.cpu_s / order.seconds
    lag_ms = percentile(heard.lags_ms, 99)
    late = bool(heard.lags_ms) and lag_ms > _LARGEST_LAG_MS
    busy = generator_cpu > _BUSY_SHARE * processes
    return Point(
        callers=order.callers,
        rate=order.rate,
        img_s=heard.img_s,
        p50_ms=heard.percentile_ms(50),
        p99_ms=heard.percentile_ms(99),
        cpu=heard.server_cpu_s / order.seconds,
        generator_cpu=generator_cpu,
        lag_p99_ms=lag_ms,
        agreement=heard.agreement,
        errors=dict(heard.errors),
        valid=not (heard.errors or late or busy) and bool(heard.latencies_ms),
    )
