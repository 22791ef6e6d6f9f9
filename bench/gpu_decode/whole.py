"""The whole way in one process, without gRPC: from a JPEG's bytes to its answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.closed_loop import ClosedLoop
from pipeline.embedded import Pipeline

_POLL_S = 50e-6
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Whole:
    """What one process does.

    Attributes:
        in_flight: images under way at all times.
        img_s: images per second.
        batch_fill: mean images of a forward.
        p50_ms, p99_ms: from submit to answer.
        by: share of the images that each decoder has decoded.
    """

    in_flight: int
    img_s: float
    batch_fill: float
    p50_ms: float
    p99_ms: float
    by: dict[str, float]


def measure(pipeline: Pipeline, files: Sequence[bytes], in_flight: int, seconds: float) -> Whole:
    """Throughput and latency with so many images under way, fed on one thread, as a frontend's event loop is one."""
    fed = ClosedLoop(pipeline, files).run(in_flight, _WARM_UP_S, seconds, lambda: time.sleep(_POLL_S))
    p50_ms, p99_ms = fed.percentiles_ms(50, 99)
    return Whole(in_flight, fed.img_s, fed.batch_fill, p50_ms, p99_ms, fed.shares)
