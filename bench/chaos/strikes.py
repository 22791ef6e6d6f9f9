"""Killing: which process, how and when, by a seeded schedule, and watching that each comes back."""

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.chaos.outcomes import Strike
from bench.children import Child, children

_POLL_S = 0.05
_WARM_AFTER_S = 20.0
# How to strike, and how often each is drawn.
_ACTIONS = (
    *(("kill", "frontend"),) * 3,
    *(("kill", "engine"),) * 2,
    *(("freeze", "engine"),) * 1,
    *(("pause", "frontend"), ("pause", "engine")),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """When and how hard.

    Attributes:
        pauses_s: shortest and longest time between a strike and the next.
        pause_s: length of a "pause"; far less than the service takes for a hang.
        replace_s: how long a replacement may take.
    """

    pauses_s: tuple[float, float] = (5.0, 12.0)
    pause_s: float = 0.3
    replace_s: float = 30.0


class Striker:
    """Strikes down the children of one supervisor.

    Args:
        supervisor: its process id.
        seed: of the schedule.
    """

    def __init__(self, supervisor: int, seed: int, schedule: Schedule) -> None:
        self.strikes: list[Strike] = []
        self._supervisor = supervisor
        self._dice = random.Random(seed)
        self._schedule = schedule

    def strike_until(self, end_s: float, tell: Callable[[Strike], None]) -> None:
        """Strike at random until `end_s`, in seconds of CLOCK_MONOTONIC. Returns once the last victim is replaced."""
        while True:
            pause_s = self._dice.uniform(*self._schedule.pauses_s)
            if time.monotonic() + pause_s > end_s:
                time.sleep(max(0.0, end_s - time.monotonic()))
                return
            time.sleep(pause_s)
            self._strike(*self._dice.choice(_ACTIONS), tell)

    def _strike(self, action: str, role: str, tell: Callable[[Strike], None]) -> None:
        victims = [child for child in children(self._supervisor) if child.role == role]
        if action == "freeze":
            # While an engine warms up, nothing says how long that may take: it is watched from then on.
            victims = [child for child in victims if time.time() - child.process.create_time() > _WARM_AFTER_S]
        if not victims:
            return
        victim = self._dice.choice(victims)
        at_s = time.monotonic()
        if action == "pause":
            victim.process.suspend()
            time.sleep(self._schedule.pause_s)
            victim.process.resume()
            strike = Strike(action, role, at_s, None)
        else:
            victim.process.send_signal(signal.SIGKILL if action == "kill" else signal.SIGSTOP)
            strike = Strike(action, role, at_s, self._replaced(victim, at_s + self._schedule.replace_s))
        self.strikes.append(strike)
        tell(strike)

    def _replaced(self, victim: Child, until_s: float) -> float | None:
        while time.monotonic() < until_s:
            if any(_replaces(child, victim) for child in children(self._supervisor)):
                return time.monotonic()
            time.sleep(_POLL_S)
        return None


def _replaces(child: Child, victim: Child) -> bool:
    same_place = (child.role, child.number) == (victim.role, victim.number)
    return same_place and child.process != victim.process


def same_places(before: Sequence[Child], now: Sequence[Child]) -> bool:
    """Whether each place is taken, once."""
    return sorted((child.role, child.number) for child in before) == sorted((c.role, c.number) for c in now)
