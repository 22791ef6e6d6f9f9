"""When callers who know nothing of each other call."""

import random
from collections.abc import Iterator


def poisson(rate: float, open_s: float, stop_s: float, dice: random.Random) -> Iterator[float]:
    """Random moments between two others, `rate` a second on average: the times between them are exponential."""
    due_s = open_s + dice.expovariate(rate)
    while due_s < stop_s:
        yield due_s
        due_s += dice.expovariate(rate)
