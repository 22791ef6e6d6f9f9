"""What each file is to be answered with, told before the load starts, and how far an answer may be off.

Half precision moves probabilities by up to 0.035 (bench/LOG.md, 2026-11-30), and two classes that lie closer than that
may change places. So an answer is wrong if its first class is none of those that could come first, or if its
probability is not that class's. The second also finds answers that went to the wrong caller, as long as their images
are scored differently: `swaps_noticed` says how often that is so.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOLERANCE = 0.05
# bf16 keeps 8 bits: 7 % of its first classes are others (bench/LOG.md, 2026-11-30).
_TOLERANCES = {"bf16": 0.25}


def tolerance(dtype: str) -> float:
    """By how much a probability may differ where the forward computes in `dtype`."""
    return _TOLERANCES.get(dtype, TOLERANCE)


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one file.

    Attributes:
        top1: the class that is expected first.
        scores: of each class that may come first, its probability.
        tolerance: by how much that may be off.
    """

    top1: int
    scores: Mapping[int, float]
    tolerance: float = TOLERANCE

    def fits(self, index: int, score: float) -> bool:
        """Whether an answer with this class first is right."""
        return index in self.scores and abs(score - self.scores[index]) <= self.tolerance


def expect(predictions: Iterable[tuple[int, float]], allowed: float = TOLERANCE) -> Expected:
    """From classes and probabilities, the likeliest first."""
    ranked = list(predictions)
    top1, best = ranked[0]
    return Expected(top1, {index: score for index, score in ranked if score >= best - allowed}, allowed)


def swaps_noticed(expected: Sequence[Expected | None]) -> float:
    """Share of the pairs of files whose answers cannot be exchanged unnoticed; NaN for fewer than two files."""
    pairs = list(itertools.combinations([each for each in expected if each], 2))
    if not pairs:
        return float("nan")
    return sum(_differ(one, other) for one, other in pairs) / len(pairs)


def _differ(one: Expected, other: Expected) -> bool:
    return not (one.fits(other.top1, other.scores[other.top1]) and other.fits(one.top1, one.scores[one.top1]))
