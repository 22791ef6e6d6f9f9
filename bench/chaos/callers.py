"""The callers: tasks of a process of their own, each making one random call after another until told to stop."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any

import grpc
import uvloop
from google.rpc import error_details_pb2

from bench.chaos.outcomes import LOST, NO_PUSHBACK, TWICE, WRONG_ANSWER, Outcome
from bench.palette import COLOURS, picture
from warmlane.base import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES
from warmlane.errors import PUSHBACK_KEY, REQUEST_ID_KEY
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierStub

MAX_IMAGE_BYTES = 100_000
MAX_BATCH = 8
_MAX_STREAM = 40
_PATIENT_S = 30.0
_LOST_AFTER_S = 10.0
_PAUSE_S = 0.01
_PAUSE_UNAVAILABLE_S = 0.05
_HUGE_EVERY_S = 7.0
# Between two calls: callers that never rest would measure their own process.
_LONGEST_THOUGHT_S = 0.1

# What grpc.aio makes up when a stream ended while it was sending: the status that it ended with is lost.
_SENT_TOO_LATE = "Internal error from Core"
# A connection that broke is tried again at once, and what is too large is for the server to refuse.
_OPTIONS = [
    *((name, value) for name, value in CHANNEL_OPTIONS if name != "grpc.max_send_message_length"),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This is how long a connection may take, too, and the machine is busy.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 500),
]
_SHAPES = ("unary", "unary", "unary", "batch", "stream")
_TEMPERS = ("patient",) * 6 + ("late", "cancels")
_IMAGES = ("good",) * 17 + ("garbage", "truncated", "oversized")


@dataclass(frozen=True, slots=True)
class Sent:
    """One image of a call; its colour is what a good one is answered with."""

    kind: str
    colour: int
    data: bytes


@dataclass(slots=True)
class Call:
    """One call, and what has become of its images so far."""

    shape: str
    temper: str
    images: list[Sent]
    timeout_s: float = _PATIENT_S
    cancel_after_s: float | None = None
    started_s: float = field(default_factory=time.monotonic)
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def settle(self, number: int, status: str, details: str = "") -> None:
        """Note the outcome of one image; a second one spoils it."""
        if number in self.outcomes:
            status = TWICE
        image = self.images[number].kind
        now_s = time.monotonic()
        self.outcomes[number] = Outcome(self.shape, self.temper, image, status, self.started_s, now_s, details)

    def out_of_time(self) -> bool:
        """Whether its deadline has passed."""
        return time.monotonic() - self.started_s >= self.timeout_s

    def settle_rest(self, status: str, details: str = "") -> None:
        """Note the same outcome for every image that has none."""
        for number in range(len(self.images)):
            if number not in self.outcomes:
                self.settle(number, status, details)


def call_until(target: str, callers: int, seed: int, stop: Event) -> list[Outcome]:
    """Make calls from this process until `stop` is set; what became of every image."""
    return uvloop.run(_drive(target, callers, seed, stop))


async def _drive(target: str, callers: int, seed: int, stop: Event) -> list[Outcome]:
    dice = random.Random(seed)
    # So many lie between two images of the same colour that they are never under way together.
    colours = itertools.cycle(dice.sample(range(COLOURS), COLOURS))
    outcomes: list[Outcome] = []
    tasks = [_caller(target, dice, colours, stop, outcomes) for _ in range(callers)]
    await asyncio.gather(*tasks, _huge_caller(target, stop, outcomes))
    return outcomes


async def _caller(
    target: str, dice: random.Random, colours: Iterator[int], stop: Event, outcomes: list[Outcome]
) -> None:
    async with grpc.aio.insecure_channel(target, _OPTIONS) as channel:
        stub = ClassifierStub(channel)
        while not stop.is_set():
            call = random_call(dice, colours)
            await asyncio.sleep(await make(stub, call) + dice.uniform(0, _LONGEST_THOUGHT_S))
            outcomes.extend(call.outcomes.values())


async def _huge_caller(target: str, stop: Event, outcomes: list[Outcome]) -> None:
    """Now and then a message over gRPC's own limit; one at a time, for the memory that they take here."""
    data = bytes(MAX_MESSAGE_BYTES)
    async with grpc.aio.insecure_channel(target, _OPTIONS) as channel:
        next_s = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= next_s:
                call = Call("unary", "patient", [Sent("huge", 0, data)])
                await make(ClassifierStub(channel), call)
                outcomes.extend(call.outcomes.values())
                next_s = time.monotonic() + _HUGE_EVERY_S
            await asyncio.sleep(0.1)


def random_call(dice: random.Random, colours: Iterator[int]) -> Call:
    """Any shape, temper and images."""
    shape = dice.choice(_SHAPES)
    count = {"unary": 1, "batch": dice.randint(1, MAX_BATCH), "stream": dice.randint(1, _MAX_STREAM)}[shape]
    call = Call(shape, dice.choice(_TEMPERS), [_image(dice.choice(_IMAGES), next(colours)) for _ in range(count)])
    if call.temper == "late":
        call.timeout_s = dice.choice([0.001, 0.01, 0.05, 0.2])
    elif call.temper == "cancels":
        call.cancel_after_s = dice.uniform(0, 0.05)
    return call


def _image(kind: str, colour: int) -> Sent:
    data = picture(colour)
    if kind == "garbage":
        data = b"no image at all, number %d" % colour
    elif kind == "truncated":
        data = data[: len(data) // 2]
    elif kind == "oversized":
        data += bytes(MAX_IMAGE_BYTES)
    return Sent(kind, colour, data)


async def make(stub: ClassifierStub, call: Call) -> float:
    """Make the call and settle all its images; how long its caller should pause, in seconds."""
    make_shape = {"unary": _unary, "batch": _batch, "stream": _stream}[call.shape]
    call.started_s = time.monotonic()
    pause_s = 0.0
    try:
        await asyncio.wait_for(make_shape(stub, call), call.timeout_s + _LOST_AFTER_S)
    except TimeoutError:
        call.settle_rest(LOST)
    except asyncio.CancelledError:
        call.settle_rest(_cancelled(call))
    except grpc.aio.AioRpcError as error:
        status, pause_s = _failure(call, error)
        call.settle_rest(status, error.details() or "")
    # What a call that has ended well did not answer is lost.
    call.settle_rest(LOST)
    return pause_s


def _cancelled(call: Call) -> str:
    """As its caller wished; of a stream that is out of time gRPC now and then says the same, in either of its ways."""
    return "DEADLINE_EXCEEDED" if call.cancel_after_s is None and call.out_of_time() else "CANCELLED"


def _failure(call: Call, error: grpc.aio.AioRpcError) -> tuple[str, float]:
    """The status of a failed call, and how long to pause before the next."""
    trailing: dict[str, Any] = dict(iter(error.trailing_metadata() or ()))  # type: ignore[arg-type]
    name = error.code().name
    if name == "INTERNAL" and error.details() == _SENT_TOO_LATE:
        name = "DEADLINE_EXCEEDED" if call.out_of_time() else "UNAVAILABLE"
    if name == "CANCELLED":
        return _cancelled(call), 0.0
    if name == "UNAVAILABLE":
        return name, _PAUSE_UNAVAILABLE_S
    # gRPC itself refuses what is over its limit, and knows no request id.
    if name == "RESOURCE_EXHAUSTED" and (call.images[0].kind != "huge" or REQUEST_ID_KEY in trailing):
        pushback_ms = trailing.get(PUSHBACK_KEY, "")
        return (name, int(pushback_ms) / 1e3) if pushback_ms.isdigit() else (NO_PUSHBACK, _PAUSE_S)
    return name, 0.0


def _cancel_later(call: Call, rpc: Any) -> None:
    if call.cancel_after_s is not None:
        asyncio.get_running_loop().call_later(call.cancel_after_s, rpc.cancel)


async def _unary(stub: ClassifierStub, call: Call) -> None:
    rpc = stub.Classify(_request(call.images[0]), timeout=call.timeout_s)
    _cancel_later(call, rpc)
    call.settle(0, _answer(call.images[0], await rpc))


async def _batch(stub: ClassifierStub, call: Call) -> None:
    message = pb.ClassifyBatchRequest(requests=[_request(image) for image in call.images])
    rpc = stub.ClassifyBatch(message, timeout=call.timeout_s)
    _cancel_later(call, rpc)
    for number, result in enumerate((await rpc).results):
        call.settle(number, _result(call.images[number], result))


async def _stream(stub: ClassifierStub, call: Call) -> None:
    async def requests() -> AsyncIterator[pb.ClassifyStreamRequest]:
        for number, image in enumerate(call.images):
            yield pb.ClassifyStreamRequest(id=number, request=_request(image))

    rpc = stub.ClassifyStream(requests(), timeout=call.timeout_s)
    _cancel_later(call, rpc)
    async for response in rpc:
        call.settle(response.id, _result(call.images[response.id], response.result))


def _request(image: Sent) -> pb.ClassifyRequest:
    return pb.ClassifyRequest(image=image.data, top_k=1)


def _result(image: Sent, result: pb.ClassifyResult) -> str:
    if result.HasField("response"):
        return _answer(image, result.response)
    status = next(code for code in grpc.StatusCode if code.value[0] == result.error.code).name
    if status == "RESOURCE_EXHAUSTED" and not any(
        detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in result.error.details
    ):
        return NO_PUSHBACK
    return status


def _answer(image: Sent, response: pb.ClassifyResponse) -> str:
    if image.kind != "good":
        return "OK"
    return "OK" if [prediction.index for prediction in response.predictions] == [image.colour] else WRONG_ANSWER
