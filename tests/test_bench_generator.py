"""The load generator in this process against the fake service, which answers by the first word of an image."""

import math
import time
from collections import Counter

import numpy as np
import pytest

from bench.generator import Load, Plan, call, shares
from bench.summary import COLUMNS, column, to_samples
from bench.tally import Window
from tests.fake_service import FakeClassifier, nobody_listening, serving


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found = [b"cat"]
    monkeypatch.setattr("bench.generator.mix_images", lambda name: found)
    return found


def count_calls(target: str, calls: int, callers: int = 2) -> Load:
    plan = Plan(target, callers=callers, warmup_s=0, seconds=0, calls=calls)
    return call(plan, Window(time.monotonic(), math.inf))


def test_so_many_calls_are_made_and_their_timings_kept(files: list[bytes]) -> None:
    servicer = FakeClassifier()
    with serving(servicer) as target:
        load = count_calls(target, 7)
    assert len(servicer.requests) == len(load.samples) == 7
    assert not load.errors
    assert np.allclose(column(load.samples, "decode"), 1.25)
    assert np.allclose(column(load.samples, "batch_fill"), 3)
    assert (column(load.samples, "latency") > 0).all()


def test_only_answers_within_the_window_count(files: list[bytes]) -> None:
    servicer = FakeClassifier()
    now = time.monotonic()
    with serving(servicer) as target:
        load = call(Plan(target, callers=1, seconds=0.2), Window(now + 0.3, now + 0.5))
    assert 0 < len(load.samples) < len(servicer.requests)
    assert time.monotonic() - now < 5


def test_a_full_server_is_expected_and_asked_again(files: list[bytes]) -> None:
    files[:] = [b"busy 1 2"]
    with serving(FakeClassifier()) as target:
        load = count_calls(target, 4, callers=1)
    assert load.errors == Counter(RESOURCE_EXHAUSTED=2)
    assert not load.unexpected
    assert len(load.samples) == 2


def test_any_other_error_makes_the_run_invalid_and_ends_its_caller(files: list[bytes]) -> None:
    files[:] = [b"fail INTERNAL"]
    with serving(FakeClassifier()) as target:
        load = count_calls(target, 100, callers=3)
    assert load.unexpected == {"INTERNAL": 3}
    assert len(load.samples) == 0


def test_no_server_is_an_error_not_a_hang(files: list[bytes]) -> None:
    with nobody_listening() as target:
        assert count_calls(target, 5, callers=1).unexpected == {"UNAVAILABLE": 1}


@pytest.mark.parametrize(("total", "parts", "expected"), [(16, 3, [6, 5, 5]), (1, 2, [1, 0]), (0, 2, [0, 0])])
def test_shares(total: int, parts: int, expected: list[int]) -> None:
    assert shares(total, parts) == expected


def test_throughput_is_answers_by_seconds() -> None:
    load = Load(to_samples([[1.0] * len(COLUMNS)] * 30), seconds=2.0, errors=Counter(), cpu_s=0.0)
    assert load.img_s == 15.0
