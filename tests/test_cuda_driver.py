"""Which copies become one. That they copy is shown on a GPU, by every answer."""

import pytest

from pipeline.cuda_driver import merged


@pytest.mark.parametrize(
    ("sources", "copies"),
    [
        ([], []),
        ([500], [(0, 500, 10)]),
        ([500, 510, 520], [(0, 500, 30)]),
        ([500, 520, 510], [(0, 500, 10), (10, 520, 10), (20, 510, 10)]),
        ([500, 510, 700, 710, 500], [(0, 500, 20), (20, 700, 20), (40, 500, 10)]),
        ([520, 510], [(0, 520, 10), (10, 510, 10)]),
    ],
)
def test_neighbours_are_copied_together(sources: list[int], copies: list[tuple[int, int, int]]) -> None:
    assert list(merged([10 * index for index in range(len(sources))], sources, 10)) == copies


def test_not_across_a_gap_between_the_targets() -> None:
    assert list(merged([0, 20], [500, 510], 10)) == [(0, 500, 10), (20, 510, 10)]
