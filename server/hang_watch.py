"""Looks for processes that live but show nothing. Each writes a heartbeat to the shared page, from where it works."""

import logging
import time
from collections.abc import Iterable, Mapping

from pipeline.shared import StatusPage
from server.children import Child

log = logging.getLogger(__name__)

# Imports come before the first heartbeat, and may take long on a busy machine.
_IMPORTS_S = 60.0
# Whoever looks so late has stood still itself, and so may have all others: they shall have a moment to show something.
_LATE_S = 2.0


class HangWatch:
    """For the supervisor, which puts others in the place of those that are killed here.

    Args:
        limits_s: by role, how long a process may show nothing, in seconds.
    """

    def __init__(self, page: StatusPage, limits_s: Mapping[str, float]) -> None:
        self._page = page
        self._limits_s = limits_s
        self._looked_s = time.monotonic()

    def look(self, children: Iterable[Child]) -> None:
        """Kill those that hang; to be called every now and then."""
        now = time.monotonic()
        is_late, self._looked_s = now - self._looked_s > _LATE_S, now
        if is_late:
            return
        for child in children:
            silent_s = now - self._heard_s(child)
            if silent_s > self._limit_s(child) and not child.is_given_up:
                setting = f"--{child.place.role}-timeout-s"
                log.error("%s has hung for %.1f s (%s): it is killed", child.place, silent_s, setting)
                child.is_given_up = True
                child.kill()

    def _heard_s(self, child: Child) -> float:
        heartbeats = self._page.heartbeat if child.place.role == "engine" else self._page.frontend_heartbeat
        # The last one may be of a predecessor.
        return max(float(heartbeats[child.place.index]), child.started_s)

    def _limit_s(self, child: Child) -> float:
        limit_s = self._limits_s[child.place.role]
        return limit_s if child.is_ready else max(limit_s, _IMPORTS_S)
