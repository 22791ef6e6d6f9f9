"""More than can be served: refusing, holding back, and dropping what nobody waits for any more."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import grpc
import pytest

from pipeline import decoders
from pipeline.decode import Decoded, decode
from pipeline.errors import DeadlineExceeded
from pipeline.headers import Header
from server.servicer import Servicer
from tests import slow_model
from tests.serving import (
    InProcess,
    ask,
    dropped,
    eventually,
    in_process,
    raw_stub,
    settings_of,
    top,
    wait_until_open_calls,
)
from tests.slow_model import HELD, solid
from warmlane import errors
from warmlane.client import Client
from warmlane.results import Classification
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierStub


@pytest.fixture
def stub(server: InProcess) -> Iterator[ClassifierStub]:
    with raw_stub(server.target) as stub:
        yield stub


@pytest.fixture
def client(server: InProcess) -> Iterator[Client]:
    """Without retries."""
    with Client(server.target, max_attempts=1) as client:
        yield client


@pytest.fixture
def server() -> Iterator[InProcess]:
    """Four slots, one image a batch, one decode thread."""
    with in_process("--slots", "4", "--max-batch-images", "4", "--batch-size", "1", "--decode-threads", "1") as server:
        yield server
        assert eventually(lambda: server.slots_in_use() == 0), "slots were lost"


def start(stub: ClassifierStub, image: bytes, timeout_s: float | None = None) -> Any:
    return stub.Classify.future(ask(image), timeout=timeout_s)


@contextmanager
def held_forward(stub: ClassifierStub, queued: tuple[int, ...] = ()) -> Iterator[list[Any]]:
    """The engine is kept in a forward, which holds no slot; the calls of the `queued` levels wait for it in slots."""
    slow_model.gate.clear()
    calls = [start(stub, solid(HELD))]
    assert eventually(lambda: HELD in slow_model.seen)
    calls += [start(stub, solid(level)) for level in queued]
    try:
        yield calls
    finally:
        slow_model.gate.set()


class HeldDecode:
    """Stands in for `decode`: the same, but an image of 100 x 100 pixels waits for `gate` first."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.left = threading.Event()

    def __call__(self, data: bytes, header: Header, **how: Any) -> Decoded:
        if header.width == 100:
            self.entered.set()
            self.gate.wait(20)
            self.left.set()
        return decode(data, header, **how)


@pytest.fixture
def held_decode(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDecode]:
    held = HeldDecode()
    monkeypatch.setattr(decoders, "decode", held)
    yield held
    held.gate.set()


# Of a level of its own, to be found in `slow_model.seen`.
SLOW_TO_DECODE = solid(150, side=100)


def test_no_slot_free(server: InProcess, stub: ClassifierStub, client: Client) -> None:
    before = dropped("admission", "overloaded")
    with held_forward(stub, queued=(50, 51, 52, 53)) as calls:
        assert eventually(lambda: server.slots_in_use() == 4)
        with pytest.raises(errors.Overloaded, match=r"4 of 4 images are in flight.*--slots") as refused:
            client.classify(solid(60))
        assert refused.value.retry_after_ms is not None
        assert refused.value.retry_after_ms >= 1
        with pytest.raises(errors.Overloaded):
            client.classify_batch([solid(61)])
        # What is wrong with the call itself is told also by a server that is full.
        with pytest.raises(errors.InvalidArgument):
            client.classify(solid(60), top_k=101)
    assert [top(call.result(10)) for call in calls] == [HELD, 50, 51, 52, 53]
    assert dropped("admission", "overloaded") == before + 2
    assert not {60, 61} & set(slow_model.seen)


def test_a_batch_takes_all_its_slots_or_none(server: InProcess, stub: ClassifierStub, client: Client) -> None:
    with held_forward(stub, queued=(50, 51)):
        assert eventually(lambda: server.slots_in_use() == 2)
        with pytest.raises(errors.Overloaded, match="no room for 3 more"):
            client.classify_batch([solid(60)] * 3)
        assert server.slots_in_use() == 2


def test_the_client_comes_back_after_the_pushback(server: InProcess, stub: ClassifierStub) -> None:
    with Client(server.target, max_attempts=1000) as patient, ThreadPoolExecutor() as callers:
        with held_forward(stub, queued=(50, 51, 52, 53)):
            assert eventually(lambda: server.slots_in_use() == 4)
            before = dropped("admission", "overloaded")
            waiting = callers.submit(patient.classify, solid(60))
            assert eventually(lambda: dropped("admission", "overloaded") > before + 1)
        assert waiting.result(10).predictions[0].index == 60


def test_more_calls_than_may_be_open_are_refused_and_health_checks_are_not() -> None:
    with in_process("--max-calls", "2", "--batch-size", "1") as server, raw_stub(server.target) as stub:
        before = dropped("admission", "overloaded")
        with held_forward(stub, queued=(50,)) as calls, Client(server.target, max_attempts=1) as client:
            wait_until_open_calls(server, 2)
            with pytest.raises(errors.Overloaded, match=r"2 calls are open, no more may \(--max-calls\)") as refused:
                client.classify(solid(60), request_id="one-more")
            assert refused.value.request_id == "one-more"
            assert refused.value.retry_after_ms
            assert client.health() == "SERVING"
        assert [top(call.result(10)) for call in calls] == [HELD, 50]
        assert dropped("admission", "overloaded") == before + 1
        with Client(server.target) as client:
            assert client.classify(solid(60)).predictions[0].index == 60


def test_a_stream_is_held_back_not_refused(server: InProcess, stub: ClassifierStub, client: Client) -> None:
    with ThreadPoolExecutor() as callers, held_forward(stub, queued=(50, 51, 52, 53)):
        assert eventually(lambda: server.slots_in_use() == 4)
        streaming: Future[Any] = callers.submit(lambda: list(client.classify_stream(map(solid, range(100, 130)))))
        time.sleep(0.1)
        assert not streaming.done()
        slow_model.gate.set()
        answers = streaming.result(10)
    assert sorted((number, outcome.predictions[0].index) for number, outcome in answers) == [
        (number, 100 + number) for number in range(30)
    ]


def test_streams_leave_slots_to_single_calls() -> None:
    with (
        in_process("--slots", "16", "--max-batch-images", "4", "--batch-size", "1") as server,
        raw_stub(server.target) as stub,
        Client(server.target) as client,
        ThreadPoolExecutor() as callers,
    ):
        with held_forward(stub):
            streams = [callers.submit(list, client.classify_stream([solid(60)] * 20)) for _ in range(2)]
            assert eventually(lambda: server.slots_in_use() == 14)
            single = [start(stub, solid(level)) for level in (70, 71)]
            assert eventually(lambda: server.slots_in_use() == 16)
        assert [top(call.result(10)) for call in single] == [70, 71]
        for stream in streams:
            answers = stream.result(30)
            assert [answer.predictions[0].index for _, answer in answers] == [60] * 20  # type: ignore[union-attr]


def test_a_stream_is_held_back_beyond_its_window() -> None:
    """A window of two: of thirty images two are read and hold a slot, and the other slots are for others."""
    sent: list[int] = []

    def images() -> Iterator[pb.ClassifyStreamRequest]:
        for level in range(100, 130):
            sent.append(level)
            yield streamed(level)

    one_image = ("--batch-size", "1", "--decode-threads", "1", "--slots", "8", "--max-batch-images", "8")
    with in_process(*one_image, "--stream-window", "2") as server, raw_stub(server.target) as stub:
        with held_forward(stub):
            stream = stub.ClassifyStream(images())
            assert eventually(lambda: server.slots_in_use() == 2)
            assert eventually(lambda: len(sent) == 30), "small messages fit into what gRPC keeps"
            time.sleep(0.2)
            assert server.slots_in_use() == 2
        assert sorted((answer.id, top(answer.result.response)) for answer in stream) == [(n, n) for n in sent]


def test_a_stream_that_has_been_read_whole_is_drained_without_an_error(server: InProcess, stub: ClassifierStub) -> None:
    with held_forward(stub):
        stream = stub.ClassifyStream(map(streamed, (100, 101, 102)))
        assert eventually(lambda: server.slots_in_use() == 3)
        time.sleep(0.1)  # the end of its sending comes on its own
        server.stop()
        assert eventually(lambda: server.run(server.admission.draining.done))
    assert sorted(answer.id for answer in stream) == [100, 101, 102]
    assert stream.code() is grpc.StatusCode.OK


def test_a_caller_that_never_reads_its_stream(server: InProcess, stub: ClassifierStub, client: Client) -> None:
    """Its answered images hold no slots; of the others no more than the window is read; nobody else waits for it."""
    sent = count()

    def images() -> Iterator[pb.ClassifyStreamRequest]:
        for number in sent:
            if number == 20_000:
                return
            # 100 predictions an image, so that the answers fill what gRPC keeps for a stream.
            yield pb.ClassifyStreamRequest(id=number, request=pb.ClassifyRequest(image=solid(77), top_k=100))

    deaf = stub.ClassifyStream(images())
    assert eventually(lambda: is_steady(lambda: slow_model.seen.count(77)), 30), "the server never stopped reading"
    answered = slow_model.seen.count(77)
    assert answered < 10_000
    assert server.slots_in_use() == 0
    started = time.monotonic()
    for level in (50, 51, 52, 53):
        assert client.classify(solid(level)).predictions[0].index == level
    ((_, outcome),) = client.classify_stream([solid(54)])
    assert isinstance(outcome, Classification)
    assert outcome.predictions[0].index == 54
    assert time.monotonic() - started < 2
    assert slow_model.seen.count(77) == answered
    deaf.cancel()


def is_steady(value: Callable[[], int]) -> bool:
    first = value()
    time.sleep(0.3)
    return first == value() > 0


def test_a_cancelled_stream_gives_everything_back(server: InProcess, stub: ClassifierStub) -> None:
    with held_forward(stub, queued=(50,)):
        streams = [stub.ClassifyStream(map(streamed, range(100, 120))) for _ in range(3)]
        assert eventually(lambda: server.slots_in_use() == 4)
        for stream in streams:
            stream.cancel()
        assert eventually(lambda: server.run(lambda: server.admission._open_calls) == 2)
    # The fixture checks the slots.


def streamed(level: int) -> pb.ClassifyStreamRequest:
    return pb.ClassifyStreamRequest(id=level, request=ask(solid(level)))


def test_cancelled_before_decode(server: InProcess, stub: ClassifierStub, held_decode: HeldDecode) -> None:
    before = dropped("decode", "cancelled")
    first = start(stub, SLOW_TO_DECODE)
    assert held_decode.entered.wait(10)
    second = start(stub, solid(60))
    assert eventually(lambda: server.slots_in_use() == 2)
    second.cancel()
    wait_until_open_calls(server, 1)
    held_decode.gate.set()
    assert top(first.result(10)) == 150
    assert eventually(lambda: dropped("decode", "cancelled") == before + 1)
    assert 60 not in slow_model.seen


def test_cancelled_while_decoding(server: InProcess, stub: ClassifierStub, held_decode: HeldDecode) -> None:
    """The slot is kept until the decode thread has left it, and the image goes no further."""
    before = dropped("batch", "cancelled")
    call = start(stub, SLOW_TO_DECODE)
    assert held_decode.entered.wait(10)
    call.cancel()
    wait_until_open_calls(server, 0)
    assert server.slots_in_use() == 1
    assert not held_decode.left.is_set()
    held_decode.gate.set()
    assert eventually(lambda: server.slots_in_use() == 0)
    assert held_decode.left.is_set()
    assert eventually(lambda: dropped("batch", "cancelled") == before + 1)
    assert 150 not in slow_model.seen


def test_cancelled_while_a_bad_image_is_decoded(
    server: InProcess, stub: ClassifierStub, held_decode: HeldDecode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(data: bytes, header: Header, **how: Any) -> Decoded:
        held_decode(data, header, **how)
        raise ZeroDivisionError

    monkeypatch.setattr(decoders, "decode", fail)
    call = start(stub, SLOW_TO_DECODE)
    assert held_decode.entered.wait(10)
    call.cancel()
    wait_until_open_calls(server, 0)
    held_decode.gate.set()
    assert eventually(lambda: server.slots_in_use() == 0)
    monkeypatch.undo()
    assert top(start(stub, solid(60)).result(10)) == 60


def test_cancelled_before_its_batch(server: InProcess, stub: ClassifierStub) -> None:
    before = dropped("batch", "cancelled")
    with held_forward(stub, queued=(60, 61, 62)) as calls:
        assert eventually(lambda: len(server.pipeline.engine.batcher) == 3)
        calls[2].cancel()
        wait_until_open_calls(server, 3)
    assert [top(calls[index].result(10)) for index in (0, 1, 3)] == [HELD, 60, 62]
    assert dropped("batch", "cancelled") == before + 1
    assert 61 not in slow_model.seen


def test_cancelled_in_its_forward(server: InProcess, stub: ClassifierStub) -> None:
    with held_forward(stub) as calls:
        calls[0].cancel()
        wait_until_open_calls(server, 0)
    assert top(start(stub, solid(60)).result(10)) == 60


def test_a_cancelled_batch_is_dropped_whole(server: InProcess, stub: ClassifierStub) -> None:
    before = dropped("batch", "cancelled")
    with held_forward(stub):
        batch = stub.ClassifyBatch.future(pb.ClassifyBatchRequest(requests=[ask(solid(60 + i)) for i in range(4)]))
        assert eventually(lambda: len(server.pipeline.engine.batcher) == 4)
        batch.cancel()
        wait_until_open_calls(server, 1)
    assert eventually(lambda: dropped("batch", "cancelled") == before + 4)
    assert not {60, 61, 62, 63} & set(slow_model.seen)


class LocalContext:
    """Stands in for gRPC's context where a test must cancel a handler between two steps of it."""

    def time_remaining(self) -> None:
        return None

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.done = callback


def test_a_batch_cancelled_before_its_answers_are_awaited(server: InProcess, held_decode: HeldDecode) -> None:
    """A task that is cancelled before its first step never runs: what it was to send must have been sent."""
    servicer: Any = Servicer(server.pipeline, server.admission, settings_of())
    request = pb.ClassifyBatchRequest(requests=[ask(SLOW_TO_DECODE)] * 4)

    async def call() -> None:
        context = LocalContext()
        task = asyncio.create_task(servicer.ClassifyBatch(request, context))
        await asyncio.sleep(0)
        assert server.slots_in_use() == 4
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        context.done(context)

    asyncio.run_coroutine_threadsafe(call(), server.loop).result(10)
    held_decode.gate.set()
    assert eventually(lambda: server.slots_in_use() == 0)


def test_expired_before_decode(server: InProcess, stub: ClassifierStub, held_decode: HeldDecode) -> None:
    # gRPC cancels a call when its deadline passes: which of the two is found first is a race.
    before = dropped("decode", "expired", "cancelled")
    first = start(stub, SLOW_TO_DECODE)
    assert held_decode.entered.wait(10)
    second = start(stub, solid(60), timeout_s=0.1)
    assert second.exception(10).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    held_decode.gate.set()
    assert top(first.result(10)) == 150
    assert eventually(lambda: dropped("decode", "expired", "cancelled") == before + 1)
    assert 60 not in slow_model.seen


def test_expired_before_its_batch(server: InProcess, stub: ClassifierStub) -> None:
    before = dropped("batch", "expired", "cancelled")
    with held_forward(stub) as calls:
        expiring = start(stub, solid(60), timeout_s=0.1)
        assert expiring.exception(10).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert eventually(lambda: len(server.pipeline.engine.batcher) == 1)
    assert top(calls[0].result(10)) == HELD
    assert eventually(lambda: dropped("batch", "expired", "cancelled") == before + 1)
    assert 60 not in slow_model.seen


def test_expired_before_admission(server: InProcess) -> None:
    before = dropped("admission", "expired")
    with pytest.raises(DeadlineExceeded, match="before admission"):
        server.run(lambda: server.admission.check_deadline(time.monotonic()))
    assert dropped("admission", "expired") == before + 1


def test_a_deadline_shorter_than_the_queue(server: InProcess, stub: ClassifierStub, client: Client) -> None:
    client.classify(solid(5))  # the pace: half a second an image
    before = dropped("admission", "late")
    with held_forward(stub, queued=(50, 51, 52)):
        assert eventually(lambda: server.slots_in_use() == 3)
        started = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded, match=r"\d+ ms away and the queue takes \d+ ms"):
            client.classify(solid(60), timeout_s=1)
        with pytest.raises(errors.DeadlineExceeded, match="the queue takes"):
            client.classify_batch([solid(60)], timeout_s=1)
        assert time.monotonic() - started < 0.8, "refused at once, not when the deadline has passed"
        assert server.slots_in_use() == 3
    assert dropped("admission", "late") == before + 2
    assert 60 not in slow_model.seen
