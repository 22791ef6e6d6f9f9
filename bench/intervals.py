"""Arithmetic on lists of time intervals, so that overlapping work is counted once.

An interval is `(start, end)`. All functions return lists sorted and free of overlap; all but `union` expect such lists.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
Intervals = Sequence[Interval]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The stretches covered by at least one interval."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def total(intervals: Intervals) -> float:
    """The time covered."""
    return sum(end - start for start, end in intervals)


def intersect(left: Intervals, right: Intervals) -> list[Interval]:
    """The stretches covered by both."""
    common: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if end > start:
            common.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(left: Intervals, right: Intervals) -> list[Interval]:
    """The stretches covered by `left` alone."""
    return intersect(left, _complement(right))


def containing(intervals: Intervals, points: Sequence[float]) -> list[Interval]:
    """The intervals, whole, with at least one of the points in them; the points are sorted too."""
    return [(start, end) for start, end in intervals if bisect_left(points, start) < bisect_right(points, end)]


def _complement(intervals: Intervals) -> list[Interval]:
    edges = [-float("inf"), *(edge for interval in intervals for edge in interval), float("inf")]
    return [(edges[i], edges[i + 1]) for i in range(0, len(edges), 2) if edges[i + 1] > edges[i]]
