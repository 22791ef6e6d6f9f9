"""Calls on a schedule, in batches, and answers that are checked: the load generator in this process against the fake
service, which answers every image that begins with "cat" with class 281 at 0.8213. It proves nothing about speed."""

import math
import random
import statistics
import time
from itertools import pairwise

import numpy as np
import pytest

from bench.arrivals import poisson
from bench.expected import Expected, expect, swaps_noticed, tolerance
from bench.generator import Generator, Load, Plan, call
from bench.summary import column
from bench.tally import WRONG_ANSWER, Window
from tests.fake_service import FakeClassifier, nobody_listening, serving

CAT = Expected(281, {281: 0.8213})


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found = [b"cat"]
    monkeypatch.setattr("bench.generator.mix_images", lambda name: found)
    return found


def drive(target: str, seconds: float = 0.5, **plan: object) -> Load:
    open_s = time.monotonic() + 0.2
    return call(Plan(target, warmup_s=0.2, seconds=seconds, **plan), Window(open_s, open_s + seconds))  # type: ignore[arg-type]


def test_arrivals_are_random_at_their_rate() -> None:
    times = list(poisson(100.0, 10.0, 60.0, random.Random(1)))
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert all(10 <= at_s < 60 for at_s in times)
    # Of exponential gaps the deviation is the mean; of regular ones it would be nothing.
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1)


def test_a_schedule_is_kept_and_latency_counts_from_it(files: list[bytes]) -> None:
    with serving(FakeClassifier()) as target:
        load = drive(target, rate=100.0, seconds=1.0)
    assert not load.errors
    assert load.due == len(load.samples) == pytest.approx(100, abs=45)
    assert load.missed <= 0.02
    assert (column(load.samples, "lag") >= 0).all()
    assert (column(load.samples, "latency") > column(load.samples, "lag")).all()
    assert ((column(load.samples, "at_s") >= 0) & (column(load.samples, "at_s") <= 1)).all()


def test_slow_answers_do_not_hold_back_a_schedule(files: list[bytes]) -> None:
    files[:] = [b"slow"]
    with serving(FakeClassifier()) as target:
        load = drive(target, rate=20.0)
    # The fake has eight threads and takes a second: callers who wait would have sent eight calls.
    assert load.due > 3
    assert load.due == len(load.samples), "also those that are answered after the window"
    assert (column(load.samples, "latency") > 900).all()


def test_a_rate_that_cannot_be_kept_is_missed(files: list[bytes]) -> None:
    with serving(FakeClassifier()) as target:
        load = drive(target, rate=20_000.0, seconds=0.05)
    assert load.missed > 0.02


def test_what_is_refused_on_a_schedule_is_expected_and_anything_else_is_not(files: list[bytes]) -> None:
    with serving(FakeClassifier()) as target:
        files[:] = [b"full", b"fail DEADLINE_EXCEEDED"]
        assert drive(target, rate=50.0).unexpected == {}
        files[:] = [b"fail INTERNAL"]
        assert list(drive(target, rate=50.0).unexpected) == ["INTERNAL"]
        files[:] = [b"fail DEADLINE_EXCEEDED"]
        waiting = drive(target, callers=1, way="unary", seconds=0.1)
    assert list(waiting.unexpected) == ["DEADLINE_EXCEEDED"], "callers who wait are never late by themselves"


def test_each_image_of_a_batch_counts(files: list[bytes]) -> None:
    files[:] = [b"cat", b"cat", b"fail INVALID_ARGUMENT"]
    servicer = FakeClassifier()
    with serving(servicer) as target:
        load = drive(target, callers=1, way="batch", images=3)
    assert len(servicer.peers) * 2 >= len(load.samples) > 2
    assert load.errors["INVALID_ARGUMENT"] == len(servicer.peers)


@pytest.mark.parametrize("way", ["client", "unary", "batch", "stream"])
def test_wrong_answers_are_errors_in_every_way(files: list[bytes], way: str) -> None:
    files[:] = [b"cat", b"cat"]
    dog = Expected(7, {7: 0.8})
    with serving(FakeClassifier()) as target:
        load = drive(target, callers=2, way=way, images=2, expected=(CAT, dog))
    assert load.checked > 2
    assert load.errors[WRONG_ANSWER] == load.checked - load.agreed
    assert load.agreed == pytest.approx(load.checked / 2, abs=2), "each file was asked for as often"


def test_the_score_is_checked_too(files: list[bytes]) -> None:
    with serving(FakeClassifier()) as target:
        near = drive(target, callers=1, expected=(Expected(281, {281: 0.80}),))
        far = drive(target, callers=1, expected=(Expected(281, {281: 0.70}),))
    assert not near.errors
    assert far.errors[WRONG_ANSWER] == far.checked == far.agreed


def test_files_of_which_nothing_is_expected_are_left_out(files: list[bytes]) -> None:
    files[:] = [b"fail INTERNAL", b"cat"]
    with serving(FakeClassifier()) as target:
        assert not drive(target, callers=1, expected=(None, CAT)).errors


def test_nobody_there_is_an_error_on_a_schedule_too(files: list[bytes]) -> None:
    with nobody_listening() as target:
        load = drive(target, callers=1, way="unary", seconds=0.2)
    assert list(load.unexpected) == ["UNAVAILABLE"]


def test_the_rate_is_that_of_all_processes() -> None:
    with serving(FakeClassifier()) as target, Generator("none", 2) as generator:
        # One zero byte is not "cat": the fake does not know it, and answers all the same.
        load = generator.run(Plan(target, "none", rate=60.0, warmup_s=0.5, seconds=1.0))
    assert load.due == pytest.approx(60, abs=35)
    assert load.missed <= 0.02


def test_more_processes_than_callers_is_no_matter() -> None:
    with serving(FakeClassifier()) as target, Generator("none", 2) as generator:
        load = generator.run(Plan(target, "none", callers=1, processes=2, warmup_s=0.2, seconds=0.3, way="unary"))
    assert len(load.samples) > 0
    assert not load.errors


def test_classes_that_lie_close_may_change_places() -> None:
    found = expect([(3, 0.40), (5, 0.37), (9, 0.20)])
    assert found.top1 == 3
    assert found.fits(5, 0.40)
    assert not found.fits(9, 0.21)
    assert not found.fits(3, 0.50)


def test_half_precision_of_few_bits_may_differ_more() -> None:
    assert tolerance("bf16") > tolerance("fp16") == tolerance("fp32")


def test_swaps_are_noticed_where_answers_differ() -> None:
    cat, other_cat, dog = Expected(1, {1: 0.9}), Expected(1, {1: 0.7}), Expected(2, {2: 0.9})
    assert swaps_noticed([cat, other_cat, dog]) == 1.0
    assert swaps_noticed([cat, cat, None, dog]) == pytest.approx(2 / 3)
    assert math.isnan(swaps_noticed([cat]))
    assert not np.isnan(swaps_noticed([cat, dog]))
