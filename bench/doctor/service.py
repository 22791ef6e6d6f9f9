"""A running service from outside: its Prometheus metrics, read twice, and the difference between the readings."""

import time

from bench.doctor.evidence import ServiceMetrics
from bench.metrics_reading import Reading, grown, read_metrics


def watch(url: str, seconds: float, batch_size: int, cpus: int) -> ServiceMetrics:
    """Two readings, `seconds` apart."""
    before, started = read_metrics(url), time.monotonic()
    time.sleep(seconds)
    after = read_metrics(url)
    return between(before, after, time.monotonic() - started, batch_size, cpus)


def between(before: Reading, after: Reading, seconds: float, batch_size: int, cpus: int) -> ServiceMetrics:
    """What happened between two readings."""

    def mean(name: str, label: str = "") -> float:
        count = grown(before, after, f"{name}_count", label)
        return grown(before, after, f"{name}_sum", label) / count if count else 0.0

    stages = {label for name, label in after if name == "warmlane_stage_seconds_sum"}
    in_house_s = sum(grown(before, after, "warmlane_stage_seconds_sum", stage) for stage in stages)
    return ServiceMetrics(
        img_s=grown(before, after, "warmlane_images_total", "OK") / seconds,
        in_flight=in_house_s / seconds,
        batch_fill=mean("warmlane_batch_fill"),
        batch_size=batch_size,
        decode_ms=mean("warmlane_stage_seconds", "decode") * 1e3,
        queue_ms=mean("warmlane_stage_seconds", "queue") * 1e3,
        forward_ms=mean("warmlane_stage_seconds", "forward") * 1e3,
        cpus=cpus,
        decode_wait_ms=mean("warmlane_stage_seconds", "admission") * 1e3,
    )
