"""A server's Prometheus metrics as numbers."""

from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

_TIMEOUT_S = 5.0
# The one label that tells samples of a name apart; the others are summed over.
_LABELS = ("stage", "status", "process")

# Sample name with the value of that label, empty where there is none, to value.
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
    except HTTPException:
        raise MetricsError(f"metrics: what answers at {url} speaks no HTTP: is it --metrics-port?") from None
    except (URLError, OSError, ValueError) as error:
        raise MetricsError(
            f"metrics: {url} could not be read ({error}); start the server with --metrics-port"
        ) from None


def parse_metrics(text: str) -> Reading:
    """See `read_metrics`."""
    reading: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = next((sample.labels[name] for name in _LABELS if name in sample.labels), "")
            reading[sample.name, label] = reading.get((sample.name, label), 0.0) + sample.value
    return reading


def grown(before: Reading, after: Reading, name: str, label: str = "") -> float:
    """By how much a counter has grown."""
    return after.get((name, label), 0.0) - before.get((name, label), 0.0)
