"""The highest rate whose p99 stays within a limit, found by halving."""

from collections.abc import Callable
from dataclasses import dataclass

# Of the peak: what the curve of latency against rate begins with.
_FIRST = (0.3, 0.6, 0.85)
_CLOSE_ENOUGH = 0.05
_MOST_STEPS = 6
_MOST_CONFIRMATIONS = 4
_STEP_DOWN = 0.93
_STEP_UP = 1.25
# Of the calls that were due: p99.
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Point:
    """One rate, measured.

    Attributes:
        within: of the calls that were due, the share answered within the limit.
        generator_valid: whether the generator kept the rate.
    """

    rate: float
    within: float
    generator_valid: bool = True

    @property
    def met(self) -> bool:
        """Whether p99 stayed within the limit, with refused calls as endless ones."""
        return self.generator_valid and self.within >= _SHARE


@dataclass(frozen=True, slots=True)
class Found:
    """What came out.

    Attributes:
        best: the confirmed rate; None where none was.
        held_back: whether the generator failed at the rate above it, so that the service may be able to do more.
    """

    best: Point | None
    held_back: bool


def highest_rate(peak: float, probe: Callable[[float], Point], confirm: Callable[[float], Point]) -> Found:
    """Search from a first guess.

    Args:
        peak: images a second that callers who wait can get: a first guess, in either direction.
        probe: measures a rate.
        confirm: measures it for longer.
    """
    good: Point | None = None
    bad: Point | None = None
    for step in range(len(_FIRST) + _MOST_STEPS):
        rate = _FIRST[step] * peak if step < len(_FIRST) and not bad else _next_rate(good, bad)
        point = probe(rate)
        if point.met:
            good = point
        else:
            bad = point
        if good and bad and bad.rate - good.rate <= _CLOSE_ENOUGH * bad.rate:
            break
    return Found(_confirmed(good, confirm), held_back=bad is not None and not bad.generator_valid)


def _next_rate(good: Point | None, bad: Point | None) -> float:
    if bad is None:
        assert good is not None
        return good.rate * _STEP_UP
    return (bad.rate + (good.rate if good else 0.0)) / 2


def _confirmed(good: Point | None, confirm: Callable[[float], Point]) -> Point | None:
    rate = good.rate if good else 0.0
    for _ in range(_MOST_CONFIRMATIONS if good else 0):
        point = confirm(rate)
        if point.met:
            return point
        rate *= _STEP_DOWN
    return None
