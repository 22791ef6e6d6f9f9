"""Under cancels, deadlines and full slots, no caller ever gets another one's answer."""

import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from tests.serving import ask, eventually, in_process, raw_stub, top, wait_until_open_calls
from tests.slow_model import solid
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierStub


def test_every_answer_belongs_to_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    """32 callers of images that name themselves, who cancel, run out of time and leave streams at random."""
    caplog.set_level(logging.WARNING)
    images = [solid(level) for level in range(256)]
    until = time.monotonic() + 5
    with in_process("--slots", "24", "--max-batch-images", "8", "--decode-threads", "3") as server:
        with ThreadPoolExecutor(32) as callers:
            counts = list(callers.map(lambda seed: call_at_random(server.target, images, seed, until), range(32)))
        answered, given_up = (sum(column) for column in zip(*counts, strict=True))
        assert answered > 200
        assert given_up > 200
        assert eventually(lambda: server.slots_in_use() == 0), "slots were lost"
        assert len(server.pipeline.engine.batcher) == 0
        wait_until_open_calls(server, 0)
    unhandled = [record for record in caplog.records if not is_late_status(record)]
    assert not unhandled


def is_late_status(record: logging.LogRecord) -> bool:
    """gRPC tells of a status that came after the deadline of its call had passed."""
    return record.name == "grpc._cython.cygrpc" and "ExecuteBatchError" in record.getMessage()


def call_at_random(target: str, images: list[bytes], seed: int, until: float) -> tuple[int, int]:
    """How many images were answered, and how many calls were given up."""
    dice = random.Random(seed)
    answered = given_up = 0
    with raw_stub(target) as stub:
        while time.monotonic() < until:
            levels = [dice.randrange(20, 256) for _ in range(dice.choice([1, 1, 1, 4, 8]))]
            kind = dice.choice([one_image, one_batch, one_stream])
            found = kind(stub, images, levels, dice)
            if found is None:
                given_up += 1
            else:
                assert set(found) <= set(zip(levels, levels, strict=True)), f"seed {seed}"
                answered += len(found)
    return answered, given_up


Found = list[tuple[int, int]] | None


def one_image(stub: ClassifierStub, images: list[bytes], levels: list[int], dice: random.Random) -> Found:
    del levels[1:]
    response = await_or_cancel(stub.Classify.future(ask(images[levels[0]]), timeout=patience_s(dice)), dice)
    return response and [(levels[0], top(response))]


def one_batch(stub: ClassifierStub, images: list[bytes], levels: list[int], dice: random.Random) -> Found:
    message = pb.ClassifyBatchRequest(requests=[ask(images[level]) for level in levels])
    response = await_or_cancel(stub.ClassifyBatch.future(message, timeout=patience_s(dice)), dice)
    if response is None:
        return None
    return [
        (level, top(result.response)) for level, result in zip(levels, response.results, strict=True) if in_time(result)
    ]


def one_stream(stub: ClassifierStub, images: list[bytes], levels: list[int], dice: random.Random) -> Found:
    requests = (pb.ClassifyStreamRequest(id=level, request=ask(images[level])) for level in levels)
    call = stub.ClassifyStream(requests, timeout=patience_s(dice))
    leaves_after = dice.choice([0, 1, 3, None, None])
    found = []
    try:
        for response in call:
            if in_time(response.result):
                found.append((response.id, top(response.result.response)))
            if len(found) == leaves_after:
                assert all(level == answer for level, answer in found)
                call.cancel()
    except grpc.RpcError as error:
        check_given_up(error)
        return None
    return found


def in_time(result: pb.ClassifyResult) -> bool:
    """Whether an image was answered; the only error that it may have is its deadline."""
    if result.HasField("error"):
        assert result.error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0], result.error
    return result.HasField("response")


def await_or_cancel(call: Any, dice: random.Random) -> Any:
    """The response, or None for a call that was cancelled, refused or out of time."""
    if dice.random() < 0.4:
        time.sleep(dice.random() * 0.02)
        call.cancel()
    try:
        return call.result(20)
    except grpc.FutureCancelledError:
        return None
    except grpc.RpcError as error:
        check_given_up(error)
        return None


def patience_s(dice: random.Random) -> float:
    return dice.choice([0.002, 0.02, 20, 20, 20])


def check_given_up(error: grpc.RpcError) -> None:
    failed: Any = error
    allowed = (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert failed.code() in allowed, failed
