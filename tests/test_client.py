"""Both clients against a real server (tests/fake_service.py): answers, errors, retries, connections, streams."""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from tests.fake_service import MODEL, FakeClassifier, nobody_listening, serving
from tests.old_connection import relay
from warmlane import errors
from warmlane.client import AsyncClient, Client, Outcome
from warmlane.results import Classification, Explanation

Run = Callable[..., Any]


@pytest.fixture
def servicer() -> FakeClassifier:
    return FakeClassifier()


@pytest.fixture
def target(servicer: FakeClassifier) -> Iterator[str]:
    with serving(servicer) as target:
        yield target


def run_sync(target: str, method: str, *args: Any, settings: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    with Client(target, **(settings or {})) as client:
        result = getattr(client, method)(*args, **kwargs)
        return list(result) if method == "classify_stream" else result


def run_async(target: str, method: str, *args: Any, settings: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    async def main() -> Any:
        async with AsyncClient(target, **(settings or {})) as client:
            result = getattr(client, method)(*args, **kwargs)
            return [item async for item in result] if method == "classify_stream" else await result

    return asyncio.run(main())


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """One call of a method of a client made for it; a stream comes as a list."""
    chosen: Run = request.param
    return chosen


def test_classify_answers(run: Run, target: str) -> None:
    result = run(target, "classify", b"cat", 2)
    assert [(p.index, p.label, round(p.score, 4)) for p in result.predictions] == [
        (281, "tabby cat", 0.8213),
        (282, "tiger cat", 0.101),
    ]
    assert result.timings.total_ms == pytest.approx(2.33)
    assert result.timings.batch_fill == 3
    assert (result.model, result.model_version) == ("fakenet", "sha256:0123456789ab")
    assert result.explanation is None


def test_results_are_frozen(target: str) -> None:
    result = run_sync(target, "classify", b"cat")
    with pytest.raises(FrozenInstanceError):
        result.model = "other"


def test_explanation_comes_only_if_asked_for(run: Run, target: str) -> None:
    result = run(target, "classify", b"cat", explain=True)
    done = ("converted CMYK to RGB", "end marker missing")
    assert result.explanation == Explanation("JPEG", 500, 375, 6, done, "libjpeg-turbo")


def test_an_image_may_be_a_path(run: Run, target: str, servicer: FakeClassifier, tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(b"cat from a file")
    run(target, "classify", path)
    run(target, "classify", str(path))
    assert [request.image for request in servicer.requests] == [b"cat from a file"] * 2


def test_the_request_carries_what_was_asked(run: Run, target: str, servicer: FakeClassifier) -> None:
    run(target, "classify", b"cat", 7, True, settings={"model": "fakenet"})
    (request,) = servicer.requests
    assert (request.top_k, request.explain, request.model) == (7, True, "fakenet")


def test_request_id_makes_the_round_trip(run: Run, target: str, servicer: FakeClassifier) -> None:
    assert run(target, "classify", b"cat", request_id="my-id").request_id == "my-id"
    with pytest.raises(errors.InvalidArgument) as caught:
        run(target, "classify", b"fail INVALID_ARGUMENT", request_id="bad-id")
    assert caught.value.request_id == "bad-id"
    assert servicer.request_ids == ["my-id", "bad-id"]


def test_a_request_id_is_made_where_none_is_given(run: Run, target: str, servicer: FakeClassifier) -> None:
    ids = {run(target, "classify", b"cat").request_id for _ in range(2)}
    assert len(ids) == 2
    assert ids == set(servicer.request_ids)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("INVALID_ARGUMENT", errors.InvalidArgument),
        ("NOT_FOUND", errors.ModelNotFound),
        ("RESOURCE_EXHAUSTED", errors.Overloaded),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
        ("UNAVAILABLE", errors.Unavailable),
        ("CANCELLED", errors.Cancelled),
        ("INTERNAL", errors.InternalError),
        ("UNKNOWN", errors.InternalError),
        ("DATA_LOSS", errors.InternalError),
        ("UNIMPLEMENTED", errors.WarmlaneError),
    ],
)
def test_each_status_has_its_exception(
    run: Run, target: str, servicer: FakeClassifier, status: str, kind: type[errors.WarmlaneError]
) -> None:
    with pytest.raises(errors.WarmlaneError) as caught:
        run(target, "classify", f"fail {status}".encode(), request_id="id-1")
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.details, error.request_id) == (grpc.StatusCode[status], "as asked", "id-1")
    assert str(error) == f"{status}: as asked (request id id-1)"
    assert len(servicer.peers) == 1, "only a full server is asked again"


def test_errors_survive_pickling() -> None:
    error = errors.Overloaded(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "id-1", 20)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.retry_after_ms, copy.request_id) == (str(error), 20, "id-1")


def test_credentials_secure_the_connection(run: Run, servicer: FakeClassifier) -> None:
    settings = {"credentials": grpc.local_channel_credentials()}
    with serving(servicer, grpc.local_server_credentials()) as target:
        assert run(target, "classify", b"cat", settings=settings).model == "fakenet"


def test_no_server_is_unreachable(run: Run) -> None:
    with nobody_listening() as target, pytest.raises(errors.Unreachable):
        run(target, "classify", b"cat", timeout_s=5)


def test_the_deadline_is_kept(run: Run, target: str, servicer: FakeClassifier) -> None:
    with pytest.raises(errors.DeadlineExceeded) as caught:
        run(target, "classify", b"slow", timeout_s=0.2)
    assert caught.value.request_id == servicer.request_ids[0]


def test_a_full_server_is_asked_again_when_it_says_so(run: Run, target: str, servicer: FakeClassifier) -> None:
    start_s = time.monotonic()
    run(target, "classify", b"busy 50 2", request_id="id-1")
    assert time.monotonic() - start_s >= 0.1, "waits as long as it is told"
    assert servicer.request_ids == ["id-1"] * 3


def test_attempts_are_limited(run: Run, target: str, servicer: FakeClassifier) -> None:
    with pytest.raises(errors.Overloaded) as caught:
        run(target, "classify", b"busy 1 99", settings={"max_attempts": 2})
    assert caught.value.retry_after_ms == 1
    assert len(servicer.peers) == 2


@pytest.mark.parametrize("image", [b"full", b"busy -1 99"], ids=["no pushback", "negative pushback"])
def test_a_full_server_is_not_asked_again_otherwise(
    run: Run, target: str, servicer: FakeClassifier, image: bytes
) -> None:
    with pytest.raises(errors.Overloaded) as caught:
        run(target, "classify", image)
    assert caught.value.retry_after_ms is None
    assert len(servicer.peers) == 1


@pytest.mark.parametrize("method", ["classify", "classify_batch"])
def test_a_call_that_an_old_connection_did_not_take_goes_over_a_new_one(
    run: Run, target: str, servicer: FakeClassifier, method: str
) -> None:
    with relay(target) as through:
        run(through, method, b"cat" if method == "classify" else [b"cat"])
    assert len(servicer.peers) == 1


def test_no_wait_beyond_the_deadline(run: Run, target: str, servicer: FakeClassifier) -> None:
    start_s = time.monotonic()
    with pytest.raises(errors.Overloaded):
        run(target, "classify", b"busy 60000 99", timeout_s=20)
    assert time.monotonic() - start_s < 10
    assert len(servicer.peers) == 1


def test_calls_take_turns_over_connections(target: str, servicer: FakeClassifier) -> None:
    with Client(target, connections=3) as client:
        for _ in range(6):
            client.classify(b"cat")
    assert len(set(servicer.peers)) == 3
    assert servicer.peers[:3] == servicer.peers[3:]


def test_calls_take_turns_over_connections_async(target: str, servicer: FakeClassifier) -> None:
    async def main() -> None:
        async with AsyncClient(target, connections=3) as client:
            for _ in range(6):
                await client.classify(b"cat")

    asyncio.run(main())
    assert len(set(servicer.peers)) == 3
    assert servicer.peers[:3] == servicer.peers[3:]


def test_a_batch_answers_each_image_by_itself(run: Run, target: str) -> None:
    images = [b"cat", b"fail INVALID_ARGUMENT", b"busy 20 99", b"cat"]
    first, bad, busy, last = run(target, "classify_batch", images, 1, request_id="b")
    assert [len(result.predictions) for result in (first, last)] == [1, 1]
    assert (type(bad), bad.details, bad.request_id) == (errors.InvalidArgument, "as asked", "b/1")
    assert (type(busy), busy.retry_after_ms) == (errors.Overloaded, 20)
    assert last.request_id == "b/3"


def test_an_item_error_without_details_has_the_id_of_the_call() -> None:
    error = errors.from_status(status_pb2.Status(code=13, message="oops"), "call-1")
    assert (type(error), error.request_id) == (errors.InternalError, "call-1")
    assert type(errors.from_status(status_pb2.Status(code=99))) is errors.InternalError


def test_a_stream_yields_answers_as_they_come(run: Run, target: str) -> None:
    images = [b"cat", b"fail NOT_FOUND", b"cat", b"cat", b"cat"]
    answers = run(target, "classify_stream", images, request_id="s")
    assert [index for index, _ in answers] == [1, 0, 3, 2, 4]
    assert type(dict(answers)[1]) is errors.ModelNotFound
    assert [outcome.request_id for _, outcome in answers] == ["s/1", "s/0", "s/3", "s/2", "s/4"]


def test_an_async_stream_takes_async_images(target: str) -> None:
    async def images() -> AsyncIterator[bytes]:
        for _ in range(3):
            await asyncio.sleep(0.01)
            yield b"cat"

    assert {index for index, _ in run_async(target, "classify_stream", images())} == {0, 1, 2}


def test_a_stream_fails_as_a_whole_with_the_call(run: Run, target: str) -> None:
    with pytest.raises(errors.Unavailable, match="draining"):
        run(target, "classify_stream", [b"abort"])


def test_a_stream_answers_what_was_sent_before_an_unreadable_file(target: str, tmp_path: Path) -> None:
    with Client(target) as client:
        answers = client.classify_stream([b"cat", b"cat", tmp_path / "missing.jpg", b"cat"])
        assert [next(answers)[0], next(answers)[0]] == [1, 0]
        with pytest.raises(FileNotFoundError):
            next(answers)


def test_a_stream_answers_what_was_sent_before_an_unreadable_file_async(target: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(target) as client:
            answers = client.classify_stream([b"cat", b"cat", tmp_path / "missing.jpg", b"cat"])
            assert [(await anext(answers))[0], (await anext(answers))[0]] == [1, 0]
            with pytest.raises(FileNotFoundError):
                await anext(answers)

    asyncio.run(main())


def test_a_stream_may_be_left_early(target: str) -> None:
    with Client(target) as client:
        index, outcome = next(iter(client.classify_stream(b"cat" for _ in iter(int, 1))))
        assert index == 1
        assert isinstance(outcome, Classification)
        assert client.classify(b"cat")


def test_a_stream_may_be_left_early_async(target: str) -> None:
    async def main() -> tuple[int, Outcome]:
        async with AsyncClient(target) as client:
            async for answer in client.classify_stream(b"cat" for _ in iter(int, 1)):
                return answer
        raise AssertionError("no answer")

    assert asyncio.run(main())[0] == 1


def test_an_async_call_can_be_cancelled(target: str) -> None:
    async def main() -> None:
        async with AsyncClient(target) as client:
            await asyncio.wait_for(client.classify(b"slow"), 0.1)

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_model_tells_what_is_served(run: Run, target: str) -> None:
    info = run(target, "model")
    assert (info.name, info.labels, info.versions) == ("fakenet", tuple(MODEL.labels), dict(MODEL.versions))
    assert (info.limits.max_batch_images, info.preprocessing.crop_height) == (64, 224)
    assert info.preprocessing.mean == pytest.approx((0.485, 0.456, 0.406))


def test_an_unknown_model_is_not_found(run: Run, target: str) -> None:
    with pytest.raises(errors.ModelNotFound, match="no model 'other'"):
        run(target, "model", settings={"model": "other"})


@pytest.mark.parametrize(
    ("service", "status"), [("", "SERVING"), ("cold", "NOT_SERVING"), ("nonsense", "SERVICE_UNKNOWN")]
)
def test_health(run: Run, target: str, service: str, status: str) -> None:
    assert run(target, "health", service) == status


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout_s": 0}, "timeout_s must be positive"),
        ({"connections": 0}, "connections must be positive"),
        ({"max_attempts": -1}, "max_attempts must be positive"),
    ],
)
def test_nonsense_settings_are_refused(run: Run, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run("localhost:1", "health", settings=settings)


@pytest.mark.parametrize(
    ("kind", "method", "args", "kwargs"),
    [
        (FileNotFoundError, "classify", [""], {}),
        (ValueError, "classify", [b"cat"], {"request_id": "line\nbreak"}),
        (ValueError, "classify", [b"cat"], {"request_id": "x" * 129}),
        (ValueError, "classify", [b"cat"], {"timeout_s": -1}),
        (ValueError, "classify", [b"cat", 2**40], {}),
        (ValueError, "classify", [bytes(65 * 2**20)], {}),
        (TypeError, "classify", [None], {}),
        (TypeError, "classify_batch", [b"cat"], {}),
        (TypeError, "classify_stream", ["cat.jpg"], {}),
    ],
)
def test_nonsense_is_refused_before_anything_is_sent(
    run: Run, target: str, servicer: FakeClassifier, kind: type[Exception], method: str, args: list[Any], kwargs: Any
) -> None:
    with pytest.raises(kind):
        run(target, method, *args, **kwargs)
    assert not servicer.peers


@pytest.mark.parametrize("timeout_s", [1e12, math.inf])
def test_a_call_may_take_any_time(run: Run, target: str, timeout_s: float) -> None:
    run(target, "classify", b"cat", timeout_s=timeout_s)


def test_an_async_client_needs_a_running_loop() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncClient()


def test_a_call_of_a_closed_client_fails(target: str) -> None:
    client = Client(target)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.classify(b"cat")
