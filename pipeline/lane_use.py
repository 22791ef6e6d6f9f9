"""How busy the lanes are, as the engine's thread sees it, into the metrics."""

import time

from pipeline import metrics


class LaneUse:
    """Counts the time in which at least one lane is busy, and how many are.

    A lane is busy from the moment that its batch is handed to it until the engine finds the batch done. On a GPU that
    is the device's own time, the launch before it and at most one poll after it; nothing here asks the device.
    """

    def __init__(self) -> None:
        self._lanes = 0
        self._counted_ns = 0

    def begin(self) -> None:
        """A lane takes a batch."""
        if not self._lanes:
            self._counted_ns = time.monotonic_ns()
        self._lanes += 1
        metrics.LANES_BUSY.inc()

    def end(self) -> None:
        """A lane's batch is done, or has failed."""
        now = time.monotonic_ns()
        metrics.LANE_BUSY_SECONDS.inc((now - self._counted_ns) / 1e9)
        self._counted_ns = now
        self._lanes -= 1
        metrics.LANES_BUSY.dec()
