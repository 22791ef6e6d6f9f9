"""Counts what must not happen after warm-up: a new compilation, or a break in a compiled graph."""

import sys


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
    # Whoever compiles imports dynamo, which takes a second; a process that has not has compiled nothing.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    breaks: int = sum(dynamo.counters["graph_break"].values())
    return breaks + int(dynamo.counters["stats"]["unique_graphs"])
