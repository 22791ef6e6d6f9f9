"""The service fed from memory: its real supervisor and engine, with feeders in the place of frontends."""

import json
from collections.abc import Iterator

import pytest

from bench.closed_loop import ClosedLoop, Fed, together
from bench.gpu_decode import whole
from bench.without_grpc.__main__ import main
from pipeline.embedded import Pipeline
from pipeline.headers import Limits
from pipeline.options import Options
from tests.images.make import encode, photo
from tests.slow_model import FLAGS
from tests.tiny_model import model as tiny

LONG_S = 60.0


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    options = Options(batch_size=4, slots=8, threads=1, decode_threads=2, compile=False)
    pipeline = Pipeline(tiny(), options, Limits())
    pipeline.start().result(LONG_S)
    yield pipeline
    pipeline.stop()


def test_so_many_are_under_way_at_all_times(pipeline: Pipeline) -> None:
    seen: list[int] = []
    files = [encode(photo(), "JPEG"), encode(photo(), "PNG")]
    fed = ClosedLoop(pipeline, files).run(3, 0.1, 0.3, lambda: seen.append(pipeline.slots.in_use))
    assert fed.images == len(fed.latencies_ms) == sum(fed.by.values())
    assert set(fed.by) == {"libjpeg-turbo", "pillow"}
    assert fed.images / 4 <= fed.batches <= fed.images
    assert max(seen) == 3
    assert 0.3 <= fed.seconds < 10


def test_those_that_fail_are_told_apart(pipeline: Pipeline) -> None:
    fed = ClosedLoop(pipeline, [b"no image", encode(photo(), "JPEG")]).run(2, 0.1, 0.3, lambda: None)
    assert fed.by[""] > 0
    assert fed.by["libjpeg-turbo"] > 0
    assert fed.batches <= fed.by["libjpeg-turbo"]


def test_the_whole_way_in_one_process(pipeline: Pipeline) -> None:
    measured = whole.measure(pipeline, [encode(photo(), "JPEG"), encode(photo(), "PNG")], 3, 0.3)
    assert measured.img_s > 1
    assert 1 <= measured.batch_fill <= 4
    assert set(measured.by) == {"libjpeg-turbo", "pillow"}
    assert 0 < measured.p50_ms <= measured.p99_ms
    assert pipeline.slots.in_use == 0, "the last are waited for"


def test_feeders_add_up() -> None:
    one, two = Fed(2.0, 3, 1.5, [1.0, 2.0, 3.0], {"a": 3}), Fed(4.0, 2, 0.5, [4.0, 5.0], {"a": 1, "": 1})
    assert together([one, two]) == Fed(3.0, 5, 2.0, [1.0, 2.0, 3.0, 4.0, 5.0], {"a": 4, "": 1})


def test_the_whole_service(capfd: pytest.CaptureFixture[str]) -> None:
    load = ["--feeders", "2", "--in-flight", "4", "--seconds", "1", "--warm-up-seconds", "0.2", "--no-record"]
    assert main([*load, "--", *FLAGS, "--no-compile", "--threads", "1", "--decode-threads", "1"]) == 0
    out = capfd.readouterr().out
    results = json.loads(out.splitlines()[-1])["results"]
    assert results["img_s"] > 10
    assert results["decoded_by"] == {"libjpeg-turbo": 1.0}
    assert 1 <= results["batch_fill"] <= 8
    assert "serving tests.slow_model:Levels" in out


def test_a_service_that_cannot_start(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--feeders", "1", "--no-record", "--", "--model", "nosuchmodel"]) == 1
    out, err = capfd.readouterr()
    assert "no measurement: the service ended with 2" in out
    assert "unknown model 'nosuchmodel'" in err
