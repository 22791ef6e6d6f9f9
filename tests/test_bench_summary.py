import math

import numpy as np
import pytest

from bench.summary import COLUMNS, batch_fill, latency, sample_row, spread, stage_means, stages_gap_ms, to_samples
from warmlane.results import Timings

TIMINGS = Timings(
    admission_ms=0.5,
    decode_ms=2.0,
    queue_ms=1.0,
    transfer_ms=0.25,
    forward_ms=10.0,
    reply_ms=0.25,
    total_ms=14.0,
    batch_fill=4,
)


def rows(latencies_ms: list[float], fills: list[int] | None = None) -> list[list[float]]:
    fills = fills or [1] * len(latencies_ms)
    return [[ms, *[0.0] * (len(COLUMNS) - 2), fill] for ms, fill in zip(latencies_ms, fills, strict=True)]


def test_percentiles_of_a_known_distribution() -> None:
    found = latency(to_samples(rows([float(ms) for ms in range(101)])))
    assert (found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms) == pytest.approx((50, 90, 99, 100))


def test_no_answers_give_nan_and_no_warning() -> None:
    nothing = to_samples([])
    assert math.isnan(latency(nothing).p50_ms)
    assert math.isnan(batch_fill(nothing))
    assert stage_means(nothing) == {}
    assert stages_gap_ms(nothing) == 0.0


def test_the_stages_and_the_rest_sum_to_the_latency() -> None:
    samples = to_samples([sample_row(15.5, TIMINGS), sample_row(16.5, TIMINGS)])
    means = stage_means(samples)
    assert sum(means.values()) == pytest.approx(16.0)
    assert means["outside the server"] == pytest.approx(2.0)
    assert stages_gap_ms(samples) == pytest.approx(0.0, abs=1e-5)


def test_a_gap_between_stages_and_total_is_found() -> None:
    samples = to_samples([sample_row(15.5, TIMINGS)])
    samples[0, COLUMNS.index("total")] += 0.5
    assert stages_gap_ms(samples) == pytest.approx(0.5)


def test_batch_fill_counts_batches_not_calls() -> None:
    # One batch of 8 and one of 1: nine calls, two batches.
    assert batch_fill(to_samples(rows([1.0] * 9, [8] * 8 + [1]))) == pytest.approx(4.5)


def test_spread() -> None:
    found = spread(list(np.array([3.0, 1.0, 2.0])))
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
