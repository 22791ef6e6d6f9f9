"""Asks for health, again and again: when was the service not ready?"""

import threading
import time
from typing import Self

from bench.chaos.outcomes import Spell
from warmlane.client import Client
from warmlane.errors import WarmlaneError

_EVERY_S = 0.1
_PATIENCE_S = 2.0


class Probe:
    """A thread that asks for as long as the `with` block lasts.

    Attributes:
        serves: the last answer.
        unready: from each question that was not answered with SERVING, to its answer.
    """

    def __init__(self, target: str) -> None:
        self.serves = False
        self.unready: list[Spell] = []
        self._target = target
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            asked_s = time.monotonic()
            self.serves = self._ask()
            if not self.serves:
                self.unready.append(Spell(asked_s - _EVERY_S, time.monotonic()))

    def _ask(self) -> bool:
        # A connection each time: one that broke would wait before it is tried again.
        with Client(self._target, timeout_s=_PATIENCE_S) as client:
            try:
                return client.health() == "SERVING"
            except WarmlaneError:
                return False
