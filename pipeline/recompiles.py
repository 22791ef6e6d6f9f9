"""Counts what must not happen after warm-up: a new compilation, or a break in a compiled graph."""

from torch._dynamo.utils import counters


class RecompileWatch:
    """Reads dynamo's own counters, from the moment it is made."""

    def __init__(self) -> None:
        self._seen = _compilations()

    def news(self) -> int:
        """Compilations and graph breaks since the last call."""
        now = _compilations()
        new, self._seen = now - self._seen, now
        return new


def _compilations() -> int:
    breaks: int = sum(counters["graph_break"].values())
    return breaks + int(counters["stats"]["unique_graphs"])
