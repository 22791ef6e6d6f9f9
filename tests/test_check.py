"""The check at start: what counts as a silent fall-back to eager, and that it is said."""

import logging
import time

import pytest
import torch

from pipeline.check import Cost, compare, measure, suspicions

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("eager", "served", "words"),
    [
        (Cost(4.0, 250, 250), Cost(0.6, 1, 120), []),
        (Cost(4.0, 250, 250), Cost(0.6, 5, 120), []),
        (Cost(4.0, 250, 250), Cost(3.0, 6, 120), ["6 launches a batch"]),
        (Cost(4.0), Cost(4.0 / 1.2), []),
        (Cost(4.0), Cost(3.5), ["only 1.14 times faster"]),
        (Cost(4.0, 250, 250), Cost(4.0, 250, 250), ["250 launches a batch", "only 1.00 times faster"]),
    ],
)
def test_what_is_suspicious(eager: Cost, served: Cost, words: list[str]) -> None:
    found = suspicions(eager, served)
    assert len(found) == len(words)
    assert all(word in line for word, line in zip(words, found, strict=True))


def test_the_median_is_measured() -> None:
    pauses_s = iter([0.0, 0.03, 0.2, 0.01])  # the first run is the warm-up
    assert 30 <= measure(lambda: time.sleep(next(pauses_s)), CPU).ms < 100


def test_no_gain_is_said_loudly_and_a_gain_is_not(caplog: pytest.LogCaptureFixture) -> None:
    slow, quick = (lambda: time.sleep(0.02)), (lambda: time.sleep(0.001))
    line = compare(slow, quick, CPU)
    assert not caplog.records
    assert " ms, eager 2" in line
    compare(slow, slow, CPU)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "slower than it should be" in caplog.text
