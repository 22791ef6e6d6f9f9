"""Encoded calls, single and in streams, against a server of this process."""

import time
from collections.abc import Iterator

import numpy as np
import pytest

from bench import streams
from bench.generator import Load, Plan, call
from bench.summary import column
from bench.tally import Window
from tests.serving import InProcess, in_process
from tests.slow_model import solid

WAYS = ["unary", "stream"]


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    with in_process() as server:
        yield server


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found = [solid(40), solid(50)]
    monkeypatch.setattr("bench.generator.mix_images", lambda name: found)
    return found


def drive(server: InProcess, way: str, callers: int = 6, connections: int = 2) -> Load:
    now = time.monotonic()
    plan = Plan(server.target, callers=callers, connections=connections, way=way)
    return call(plan, Window(now + 0.2, now + 0.8))


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_counted_with_their_stages(server: InProcess, files: list[bytes], way: str) -> None:
    load = drive(server, way)
    assert not load.errors
    assert len(load.samples) > 10
    assert (column(load.samples, "latency") >= column(load.samples, "total")).all()
    assert (column(load.samples, "batch_fill") >= 1).all()
    assert np.isfinite(load.samples).all()
    assert server.slots_in_use() == 0, "whatever was begun has been answered"


@pytest.mark.parametrize("way", WAYS)
def test_no_more_are_under_way_than_callers(
    server: InProcess, files: list[bytes], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    submit = server.pipeline.submit

    def watched(request: object) -> None:
        seen.append(server.slots_in_use())
        submit(request)  # type: ignore[arg-type]

    monkeypatch.setattr(server.pipeline, "submit", watched)
    drive(server, way, callers=3, connections=2)
    assert 2 <= max(seen) <= 3


@pytest.mark.parametrize("way", WAYS)
def test_errors_are_counted_by_status(server: InProcess, files: list[bytes], way: str) -> None:
    files[:] = [b"no image"]
    load = drive(server, way)
    assert list(load.errors) == ["INVALID_ARGUMENT"]
    assert len(load.samples) == 0


def test_a_stream_is_compared_by_cpu_time_not_by_pace() -> None:
    pair = {"unary": streams.Pace(100.0, 0.6, 0.06), "stream": streams.Pace(100.0, 0.3, 0.03)}
    found = streams.summarize([pair, pair])
    assert found["ratio"]["median"] == 2.0
    assert found["unary_img_s"]["median"] == found["stream_img_s"]["median"] == 100.0
