"""Decodes in threads that take longer than they may. A thread cannot be stopped, but its caller can be answered."""

import math
import threading
import time

from pipeline.errors import DecodeTimeout
from pipeline.request import Request


class Overruns:
    """Which decodes are running. Whoever takes a request out of it, its thread or `give_up`, decides its fate.

    Attributes:
        lost: decodes that were given up and are still running.
    """

    def __init__(self, limit_s: float) -> None:
        self.lost = 0
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: dict[Request, float] = {}

    def begin(self, request: Request) -> None:
        """This thread decodes this image now."""
        with self._lock:
            self._running[request] = time.monotonic()

    def excuse(self, request: Request) -> None:
        """What is left of this decode happens in a process that is killed in time, once it has started."""
        with self._lock:
            if request in self._running:
                self._running[request] = math.inf

    def end(self, request: Request) -> bool:
        """It has ended; False if the image was given up meanwhile, and its caller has been answered."""
        with self._lock:
            is_ours = self._running.pop(request, None) is not None
            self.lost -= not is_ours
        return is_ours

    def give_up(self) -> int:
        """Answer the callers of decodes that have taken too long, whose slots stay with their threads. How many."""
        if not self._limit_s:
            return 0
        latest_s = time.monotonic() - self._limit_s
        with self._lock:
            late = [request for request, begun_s in self._running.items() if begun_s < latest_s]
            for request in late:
                del self._running[request]
            self.lost += len(late)
        for request in late:
            request.fail(DecodeTimeout(self._limit_s))
        return len(late)
