"""The way of an image through one process, with the default model run eagerly: from the file's bytes to labels."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch

from pipeline import decoders
from pipeline.embedded import Pipeline
from pipeline.engine import State
from pipeline.errors import CorruptImage, DeadlineExceeded, ImageTooLarge, NotAnImage, Unavailable
from pipeline.headers import Limits
from pipeline.model import Model
from pipeline.options import Options
from pipeline.request import Request, Result
from tests.conftest import PHOTOGRAPHS, Counted
from tests.tiny_model import model as tiny

LONG_S = 60.0
OPTIONS = Options(batch_size=4, slots=24, threads=1, decode_threads=2, compile=False)

Submit = Callable[..., Request]


@pytest.fixture(autouse=True, scope="module")
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def started(model: Model) -> Pipeline:
    pipeline = Pipeline(model, OPTIONS, Limits())
    pipeline.start().result(LONG_S)
    return pipeline


@pytest.fixture(scope="module")
def pipeline(default_model: Model) -> Iterator[Pipeline]:
    pipeline = started(default_model)
    yield pipeline
    pipeline.stop()
    assert pipeline.slots.in_use == 0


@pytest.fixture
def quick() -> Iterator[Pipeline]:
    """Of a tiny model, for what has nothing to do with answers."""
    pipeline = started(tiny())
    yield pipeline
    pipeline.stop()
    assert pipeline.slots.in_use == 0


def submit(pipeline: Pipeline, image: bytes, deadline: float = math.inf) -> Request:
    request = Request(image, "", pipeline.slots.acquire()[0], deadline)
    pipeline.submit(request)
    return request


def photo(name: str) -> bytes:
    return (PHOTOGRAPHS / f"{name}.jpg").read_bytes()


def best(pipeline: Pipeline, result: Result, count: int) -> list[str]:
    return [pipeline.model.labels[index] for index in result.indices[:count]]


@pytest.fixture
def decoding_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is decoded before this is set."""
    may_decode, decode = threading.Event(), decoders.decode_window

    def wait_and_decode(*how: Any) -> None:
        assert may_decode.wait(LONG_S)
        decode(*how)

    monkeypatch.setattr(decoders, "decode_window", wait_and_decode)
    yield may_decode
    may_decode.set()


def test_a_cat_is_a_cat(pipeline: Pipeline) -> None:
    result = submit(pipeline, photo("cat")).future.result(LONG_S)
    assert set(best(pipeline, result, 3)) == {"tiger cat", "Egyptian cat", "tabby"}


def test_a_coffee_is_an_espresso(pipeline: Pipeline) -> None:
    result = submit(pipeline, photo("coffee")).future.result(LONG_S)
    assert best(pipeline, result, 1) == ["espresso"]
    assert result.scores[0] == pytest.approx(0.95, abs=0.03)


def test_scores_fall_and_are_probabilities(pipeline: Pipeline) -> None:
    result = submit(pipeline, photo("rocket")).future.result(LONG_S)
    assert result.scores.shape == result.indices.shape == (100,)
    assert (result.scores[:-1] >= result.scores[1:]).all()
    assert 0.5 < result.scores.sum() <= 1.00001
    assert result.batch_fill == 1


def test_a_batch_answers_as_each_image_alone(pipeline: Pipeline) -> None:
    names = sorted(path.stem for path in PHOTOGRAPHS.glob("*.jpg"))
    alone = {name: submit(pipeline, photo(name)).future.result(LONG_S) for name in names}
    together = {name: [submit(pipeline, photo(name)) for _ in range(2)] for name in names}
    for name, requests in together.items():
        for request in requests:
            result = request.future.result(LONG_S)
            assert 1 <= result.batch_fill <= OPTIONS.batch_size
            assert result.indices[0] == alone[name].indices[0]
            apart = abs(result.scores - alone[name].scores).max()
            assert apart < 1e-4, f"{name}: scores in a batch are {apart} from those alone"


def test_one_bad_image_fails_alone(pipeline: Pipeline) -> None:
    good = [submit(pipeline, photo("cat")) for _ in range(3)]
    bad = {
        CorruptImage: submit(pipeline, photo("cat")[:10_000]),
        NotAnImage: submit(pipeline, b"<html>not found</html>"),
        ImageTooLarge: submit(pipeline, photo("cat") + bytes(Limits().max_bytes)),
    }
    good += [submit(pipeline, photo("coffee"))]
    for request in good:
        request.future.result(LONG_S)
    for error, request in bad.items():
        with pytest.raises(error):
            request.future.result(LONG_S)
    assert pipeline.slots.in_use == 0


def test_stages_are_stamped_in_order(pipeline: Pipeline) -> None:
    before = time.monotonic_ns()
    request = submit(pipeline, photo("cat"))
    request.future.result(LONG_S)
    stamps = request.stamps
    stages = [stamps.decode_start, stamps.queued, stamps.batched, stamps.forward_start, stamps.forward_end]
    in_order = [before, *stages, time.monotonic_ns()]
    assert in_order == sorted(in_order)
    assert request.image == b"", "encoded bytes are not kept"
    assert request.decoding is not None
    assert (request.decoding.header.width, request.decoding.header.height) == (451, 300)
    assert request.decoding.decoder == "libjpeg-turbo"
    assert pipeline.expected_wait_ms() == 0, "nothing is in flight"


def test_the_dead_are_not_decoded(
    quick: Pipeline, decoding_waits: threading.Event, dropped: Callable[[str, str], Counted]
) -> None:
    cancelled, expired = dropped("decode", "cancelled"), dropped("decode", "expired")
    busy = [submit(quick, photo("cat")) for _ in range(OPTIONS.decode_threads)]
    leaves, late = submit(quick, b""), submit(quick, b"", deadline=time.monotonic() + 0.01)
    assert leaves.future.cancel()
    time.sleep(0.02)
    decoding_waits.set()
    for request in busy:
        request.future.result(LONG_S)
    with pytest.raises(DeadlineExceeded, match="before decode"):
        late.future.result(LONG_S)
    with pytest.raises(CancelledError):
        leaves.future.result(LONG_S)
    assert (cancelled(), expired()) == (1, 1)
    assert leaves.stamps.decode_start == late.stamps.decode_start == 0


def test_what_no_image_should_cause_is_logged_and_fails_one(
    quick: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(decoders, "decode_window", broken)
        request = submit(quick, photo("cat"))
        with pytest.raises(ZeroDivisionError):
            request.future.result(LONG_S)
    assert "no image should cause" in caplog.text
    submit(quick, photo("cat")).future.result(LONG_S)


def test_stop_drains(decoding_waits: threading.Event) -> None:
    pipeline = started(tiny())
    requests = [submit(pipeline, photo("cat")) for _ in range(20)]
    stopping = threading.Thread(target=pipeline.stop)
    stopping.start()
    while pipeline.engine.state is State.READY:
        time.sleep(0.001)
    assert not any(request.future.done() for request in requests)
    decoding_waits.set()
    stopping.join(LONG_S)
    assert not stopping.is_alive()
    for request in requests:
        assert request.future.result(0).scores.shape == (10,)
    assert pipeline.slots.in_use == 0


def test_a_stopped_pipeline_says_so() -> None:
    pipeline = started(tiny())
    pipeline.stop()
    request = submit(pipeline, photo("cat"))
    with pytest.raises(Unavailable, match="stopped"):
        request.future.result(0)
    assert pipeline.slots.in_use == 0


def test_a_model_that_cannot_run_fails_the_start() -> None:
    broken = tiny(torch.nn.Linear(7, 10))
    pipeline = Pipeline(broken, OPTIONS, Limits())
    with pytest.raises(RuntimeError, match="shape"):
        pipeline.start().result(LONG_S)
    pipeline.stop()
