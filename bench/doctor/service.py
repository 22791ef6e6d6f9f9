"""A running service from outside: its Prometheus metrics, read twice, and the difference between the readings."""

import time
from collections.abc import Mapping
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from bench.doctor.evidence import ServiceMetrics

_TIMEOUT_S = 5.0

# Sample name with its `stage` or `status` label, where it has one, to value.
Reading = Mapping[tuple[str, str], float]


class MetricsError(RuntimeError):
    """The metrics cannot be read; the message is one line."""


def read_metrics(url: str) -> Reading:
    """All samples of a metrics page, summed over their other labels."""
    if not url.startswith(("http://", "https://")):
        raise MetricsError(f"metrics: {url} is no http:// address")
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as page:  # noqa: S310 (checked above)
            return parse_metrics(page.read().decode())
    except (URLError, OSError, ValueError) as error:
        raise MetricsError(
            f"metrics: {url} could not be read ({error}); start the server with --metrics-port"
        ) from None


def parse_metrics(text: str) -> Reading:
    """See `read_metrics`."""
    reading: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("stage") or sample.labels.get("status") or ""
            reading[key] = reading.get(key, 0.0) + sample.value
    return reading


def watch(url: str, seconds: float, batch_size: int, cpus: int) -> ServiceMetrics:
    """Two readings, `seconds` apart."""
    before, started = read_metrics(url), time.monotonic()
    time.sleep(seconds)
    after = read_metrics(url)
    return between(before, after, time.monotonic() - started, batch_size, cpus)


def between(before: Reading, after: Reading, seconds: float, batch_size: int, cpus: int) -> ServiceMetrics:
    """What happened between two readings."""

    def mean(name: str, label: str = "") -> float:
        count = _grown(before, after, f"{name}_count", label)
        return _grown(before, after, f"{name}_sum", label) / count if count else 0.0

    stages = {label for name, label in after if name == "warmlane_stage_seconds_sum"}
    in_house_s = sum(_grown(before, after, "warmlane_stage_seconds_sum", stage) for stage in stages)
    return ServiceMetrics(
        img_s=_grown(before, after, "warmlane_images_total", "OK") / seconds,
        in_flight=in_house_s / seconds,
        batch_fill=mean("warmlane_batch_fill"),
        batch_size=batch_size,
        decode_ms=mean("warmlane_stage_seconds", "decode") * 1e3,
        queue_ms=mean("warmlane_stage_seconds", "queue") * 1e3,
        forward_ms=mean("warmlane_stage_seconds", "forward") * 1e3,
        cpus=cpus,
        decode_wait_ms=mean("warmlane_stage_seconds", "admission") * 1e3,
    )


def _grown(before: Reading, after: Reading, name: str, label: str) -> float:
    return after.get((name, label), 0.0) - before.get((name, label), 0.0)
