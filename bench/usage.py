"""The CPU time of a service's processes over a measurement."""

from collections.abc import Callable


class Usage:
    """What each process of a service uses between two looks.

    Args:
        look: CPU seconds that each has used so far, by name.
    """

    def __init__(self, look: Callable[[], dict[str, float]]) -> None:
        self._look = look
        self._looks: list[dict[str, float]] = []

    def cpu_seconds(self) -> float:
        """Look; what all have used so far."""
        self._looks.append(self._look())
        return sum(self._looks[-1].values())

    def by_process(self) -> dict[str, float]:
        """CPU seconds between the first and the last look."""
        first, last = self._looks[0], self._looks[-1]
        return {name: last[name] - first[name] for name in sorted(first.keys() & last.keys())}

    def percent_of(self, seconds: float) -> dict[str, float]:
        """The same over the measurement's length, in percent of one core; empty where there is one process only."""
        used = self.by_process()
        return {name: 100 * cpu_s / seconds for name, cpu_s in used.items()} if len(used) > 1 else {}
