"""The status table, the fixed text of what nobody foresaw, and request ids, over real gRPC."""

import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pipeline import decoders, errors
from server import messages
from server.admission import Admission
from server.status import _call_id, as_status, code_of
from tests.serving import InProcess, in_process, raw_stub
from tests.slow_model import BROKEN, Overflowing, solid
from warmlane import errors as client_errors
from warmlane.client import Client
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierStub

# As DESIGN has it: a new error must be thought of here too.
EXPECTED = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.BadImage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotAnImage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedImage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CorruptImage: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ImageTooLarge: grpc.StatusCode.INVALID_ARGUMENT,
    errors.DecodeTimeout: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownModel: grpc.StatusCode.NOT_FOUND,
    errors.Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
}
CALLS = ("Classify", "ClassifyBatch", "ClassifyStream", "GetModel")
SECRET = "the secret words of a trace"

Metadata = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def server() -> Iterator[InProcess]:
    with in_process() as server:
        yield server


@pytest.fixture(scope="module")
def stub(server: InProcess) -> Iterator[ClassifierStub]:
    with raw_stub(server.target) as stub:
        yield stub


def ask(stub: ClassifierStub, call: str, image: bytes, metadata: Metadata = (), model: str = "") -> tuple[Any, Any]:
    """The answer, or the list of answers of a stream, or the error, and the trailing metadata."""
    item = pb.ClassifyRequest(image=image, model=model)
    requests: dict[str, Any] = {
        "Classify": item,
        "ClassifyBatch": pb.ClassifyBatchRequest(requests=[item]),
        "ClassifyStream": iter([pb.ClassifyStreamRequest(id=3, request=item)]),
        "GetModel": pb.GetModelRequest(model=model),
    }
    method = getattr(stub, call)
    try:
        if call == "ClassifyStream":
            streaming = method(requests[call], metadata=metadata, timeout=20)
            return list(streaming), dict(iter(streaming.trailing_metadata()))
        answer, done = method.with_call(requests[call], metadata=metadata, timeout=20)
        return answer, dict(iter(done.trailing_metadata()))
    except grpc.RpcError as error:
        failed: Any = error
        return error, dict(iter(failed.trailing_metadata()))


def subclasses(error: type[errors.PipelineError]) -> Iterator[type[errors.PipelineError]]:
    for child in error.__subclasses__():
        if child.__module__.startswith(("pipeline.", "server.")):
            yield child
            yield from subclasses(child)


@pytest.mark.parametrize("error", list(subclasses(errors.PipelineError)), ids=lambda error: error.__name__)
def test_every_pipeline_error_has_a_row(error: type[errors.PipelineError]) -> None:
    assert code_of(error.__new__(error)) is EXPECTED[error]


def test_an_error_without_a_row_is_internal() -> None:
    class Forgotten(errors.PipelineError):
        pass

    assert code_of(Forgotten("x")) is grpc.StatusCode.INTERNAL
    assert code_of(errors.PipelineError("x")) is grpc.StatusCode.INTERNAL


@pytest.fixture
def broken_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(decoders, "decode", fail)
    monkeypatch.setattr(messages, "model", fail)


@pytest.mark.usefixtures("broken_server")
@pytest.mark.parametrize("call", CALLS)
def test_what_nobody_foresaw_is_told_in_a_fixed_text(
    stub: ClassifierStub, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer, trailing = ask(stub, call, solid(50), (("x-request-id", f"trace-{call}"),))
    assert trailing["x-request-id"] == f"trace-{call}"
    if call == "ClassifyBatch":
        code, details, image_id = answer.results[0].error.code, answer.results[0].error.message, f"trace-{call}/0"
    elif call == "ClassifyStream":
        error = answer[0].result.error
        code, details, image_id = error.code, error.message, f"trace-{call}/0"
    else:
        code, details, image_id = answer.code().value[0], answer.details(), f"trace-{call}"
    assert code == grpc.StatusCode.INTERNAL.value[0]
    assert details == f"internal error; the server's log says more under request id {image_id}"
    logged = [record for record in caplog.records if record.message == f"request {image_id} failed"]
    assert len(logged) == 1
    assert logged[0].exc_info is not None
    assert SECRET in str(logged[0].exc_info[1])


def test_a_failing_forward_is_internal_and_the_next_call_unharmed(server: InProcess) -> None:
    with Client(server.target) as client:
        with pytest.raises(client_errors.InternalError) as failed:
            client.classify(solid(BROKEN), request_id="forward")
        assert failed.value.details == "internal error; the server's log says more under request id forward"
        assert client.classify(solid(50)).predictions[0].index == 50
    assert server.slots_in_use() == 0


def test_scores_that_are_no_numbers_are_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    images = [solid(50), solid(Overflowing.OVERFLOWS), solid(60)]
    with in_process("--model", "tests.slow_model:Overflowing") as server, Client(server.target) as client:
        first, failed, last = client.classify_batch(images, request_id="batch")
        assert isinstance(failed, client_errors.InternalError)
        assert [answer.predictions[0].index for answer in (first, last)] == [50, 60]  # type: ignore[union-attr]
        with pytest.raises(client_errors.InternalError):
            client.classify(images[1])
    logged = [record for record in caplog.records if record.message == "request batch/1 failed"]
    assert "scores are not numbers" in str(logged[0].exc_info)


def test_pushback_metadata(stub: ClassifierStub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise errors.Overloaded("full", 250)

    monkeypatch.setattr(Admission, "take_slots", full)
    for call in ("Classify", "ClassifyBatch"):
        error, trailing = ask(stub, call, solid(50))
        assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        assert trailing["grpc-retry-pushback-ms"] == "250"
        assert trailing["x-request-id"]


def test_only_overloaded_has_pushback(stub: ClassifierStub) -> None:
    _, trailing = ask(stub, "Classify", b"no image")
    assert "grpc-retry-pushback-ms" not in trailing


def test_pushback_of_one_image_survives_the_way_to_the_client() -> None:
    error = client_errors.from_status(as_status(errors.Overloaded("full", 250), "call/4"))
    assert isinstance(error, client_errors.Overloaded)
    assert (error.retry_after_ms, error.request_id) == (250, "call/4")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("model", ["", "unknown"], ids=["success", "error"])
class TestRequestId:
    def test_taken_if_sent(self, stub: ClassifierStub, call: str, model: str) -> None:
        for sent in ("a", "with space and ~", "x" * 128):
            answer, trailing = ask(stub, call, solid(50), (("x-request-id", sent),), model)
            assert trailing["x-request-id"] == sent
            assert_ids(answer, call, sent)

    @pytest.mark.parametrize("sent", [(), ("",), ("x" * 129,)], ids=["none", "empty", "too long"])
    def test_made_if_missing_or_unfit(self, stub: ClassifierStub, call: str, model: str, sent: tuple[str, ...]) -> None:
        metadata = tuple(("x-request-id", value) for value in sent)
        ids = [ask(stub, call, solid(50), metadata, model)[1]["x-request-id"] for _ in range(2)]
        assert all(re.fullmatch("[0-9a-f]{16}", made) for made in ids)
        assert ids[0] != ids[1]


def assert_ids(answer: Any, call: str, call_id: str) -> None:
    """The bodies name the same id."""
    if isinstance(answer, pb.ClassifyResponse):
        assert answer.request_id == call_id
    elif call in ("ClassifyBatch", "ClassifyStream"):
        result = answer.results[0] if call == "ClassifyBatch" else answer[0].result
        failed = client_errors.from_status(result.error).request_id
        assert f"{call_id}/0" in (result.response.request_id, failed)


# gRPC's own clients refuse to send these; others may not.
@pytest.mark.parametrize("unfit", ["tab\t", "line\n", "żółw", "\x7f"])
def test_unprintable_ids_are_not_taken(unfit: str) -> None:
    assert re.fullmatch("[0-9a-f]{16}", _call_id((("x-request-id", unfit),)))


def send_bytes(channel: grpc.Channel, call: str, data: bytes) -> None:
    path = f"/warmlane.v1.Classifier/{call}"
    if call == "ClassifyStream":
        list(channel.stream_stream(path, None, None)(iter([data])))
    else:
        channel.unary_unary(path, None, None)(data)


@pytest.mark.parametrize("call", CALLS)
def test_bytes_that_are_no_message(server: InProcess, call: str) -> None:
    with grpc.insecure_channel(server.target) as channel, pytest.raises(grpc.RpcError) as refused:
        send_bytes(channel, call, b"\xff" * 9)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x-request-id" in dict(iter(error.trailing_metadata()))
