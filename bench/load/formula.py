"""Where each millisecond of a request went: the incident's formula, with this service's terms.

    wall of a request = late sending + caller and gRPC + admission + decode + engine queue + copy in + forward + answer

The server measures the terms from admission on; they follow each other without a gap. What the caller waited beyond
them is gRPC, the network and the caller itself. Whether the sum is the wall time is told from the other end: callers
who always wait for an answer spend their whole time in these terms, so that all of them together must be the callers'
wall.
"""

from collections.abc import Mapping

from bench.summary import STAGES, Samples, column

LATE, OUTSIDE = "late sending", "caller and gRPC"
_NAMES = {
    "admission": "admission, decode queue",
    "decode": "decode",
    "queue": "engine queue",
    "transfer": "copy in",
    "forward": "forward",
    "reply": "answer",
}
TERMS = (LATE, OUTSIDE, *(_NAMES[stage] for stage in STAGES))


def terms_ms(samples: Samples) -> dict[str, float]:
    """Mean milliseconds of an image in each of `TERMS`; empty where nothing was answered."""
    if not len(samples):
        return {}
    late_ms, total_ms = (float(column(samples, name).mean()) for name in ("lag", "total"))
    outside_ms = float(column(samples, "latency").mean()) - late_ms - total_ms
    stages = {_NAMES[stage]: float(column(samples, stage).mean()) for stage in STAGES}
    return {LATE: late_ms, OUTSIDE: outside_ms, **stages}


def accounted(terms: Mapping[str, float], samples: Samples, in_calls_s: float, callers: int, seconds: float) -> float:
    """The terms of all requests over the wall time of all callers, who wait all the time; 1 where nothing is missing.

    Args:
        in_calls_s: that the callers spent in requests within the window; those that reach over its ends count in part.
    """
    told = sum(terms.values()) / float(column(samples, "latency").mean()) if terms else 0.0
    return told * in_calls_s / (callers * seconds)
