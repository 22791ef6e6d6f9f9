"""JPEG decodes that take too long: the caller is answered, the slot is not used again, the frontend is replaced.

Slow decodes are fakes: `decode_window` waits here, and `tests.slow_jpeg` takes simplejpeg's place in a server.
"""

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline import decoders
from pipeline.embedded import Pipeline
from pipeline.errors import CorruptImage, DecodeTimeout
from pipeline.headers import Limits
from pipeline.options import Options
from pipeline.overruns import Overruns
from pipeline.pillow_process import PillowProcess
from pipeline.request import Request
from tests.images.make import encode, photo
from tests.serving import _PATH, Process, eventually, starting
from tests.slow_model import FLAGS
from tests.tiny_model import model as tiny
from warmlane import errors
from warmlane.client import Client

LONG_S = 60.0
# Pixels of height, for the fake in a server.
FOR_EVER = 61
OPTIONS = Options(batch_size=1, slots=2, threads=1, decode_threads=1, compile=False)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    pipeline = Pipeline(tiny(), OPTIONS, Limits(decode_timeout_s=0.1))
    pipeline.start().result(LONG_S)
    yield pipeline
    pipeline.stop()


def jpeg(height: int = 48) -> bytes:
    return encode(photo(64, height), "JPEG")


@pytest.mark.parametrize("is_good", [True, False], ids=["decoded at last", "refused at last"])
def test_a_caller_is_answered_and_its_slot_stays(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, is_good: bool
) -> None:
    overruns, may_go_on, decode = pipeline.decoders.overruns, threading.Event(), decoders.decode_window

    def slow(*how: Any) -> None:
        assert may_go_on.wait(LONG_S)
        if not is_good:
            raise CorruptImage("late")
        decode(*how)

    with monkeypatch.context() as patch:
        patch.setattr(decoders, "decode_window", slow)
        request = Request(jpeg(), "", pipeline.slots.acquire()[0])
        pipeline.submit(request)
        assert eventually(lambda: overruns.give_up() == 1, 10)
        with pytest.raises(DecodeTimeout):
            request.future.result(0)
        assert (overruns.lost, pipeline.slots.in_use) == (1, 1)
        assert overruns.give_up() == 0, "it is given up once"
        may_go_on.set()
        assert eventually(lambda: pipeline.slots.in_use == 0, 10)
    assert overruns.lost == 0
    healthy = Request(jpeg(), "", pipeline.slots.acquire()[0])
    pipeline.submit(healthy)
    assert healthy.future.result(LONG_S).scores.shape == (10,)


@pytest.mark.parametrize("order", ["given up, then stopped", "stopped, then given up"])
def test_stopping_does_not_wait_for_what_never_ends(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    pipeline = Pipeline(tiny(), OPTIONS, Limits(decode_timeout_s=0.1))
    pipeline.start().result(LONG_S)
    may_go_on = threading.Event()
    monkeypatch.setattr(decoders, "decode_window", lambda *how: may_go_on.wait(LONG_S))
    pipeline.submit(Request(jpeg(), "", pipeline.slots.acquire()[0]))
    stopping = threading.Thread(target=pipeline.stop)
    if order.startswith("stopped"):
        stopping.start()
    assert eventually(lambda: pipeline.decoders.overruns.give_up() == 1, 10)
    if order.startswith("given up"):
        stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()
    may_go_on.set()
    assert eventually(lambda: pipeline.decoders.overruns.lost == 0, 10)


def test_without_a_limit_nothing_is_given_up() -> None:
    overruns = Overruns(0.0)
    request = Request(b"", "", None)
    overruns.begin(request)
    assert overruns.give_up() == 0
    assert overruns.end(request)


def test_what_is_decoded_in_a_process_is_not_given_up(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """That process is killed in time, which counts from when it has started."""
    overruns, decoding, may_go_on = pipeline.decoders.overruns, threading.Event(), threading.Event()
    decode_in_process = PillowProcess.decode

    def slow(*how: Any) -> Any:
        decoding.set()
        assert may_go_on.wait(LONG_S)
        return decode_in_process(*how)

    monkeypatch.setattr(PillowProcess, "decode", slow)
    pipeline.decoders._pillow._timeout_s = LONG_S
    request = Request(encode(photo(), "PNG"), "", pipeline.slots.acquire()[0])
    pipeline.submit(request)
    assert decoding.wait(LONG_S)
    time.sleep(0.2)
    monkeypatch.setattr(overruns, "_limit_s", 0.1)
    assert overruns.give_up() == 0
    may_go_on.set()
    assert request.future.result(LONG_S).scores.shape == (10,)


def server(*flags: str) -> Any:
    path = os.pathsep.join([str(Path(__file__).parent / "slow_jpeg"), _PATH])
    fake = {"PYTHONPATH": path, "SLOW_JPEG_HEIGHT": str(FOR_EVER)}
    return starting("--port", "0", *FLAGS, "--threads", "1", "--decode-timeout-s", "0.5", *flags, **fake)


def frontend(process: Process) -> int:
    child = process.children().get("frontend-0")
    return child.pid if child is not None else 0


def test_a_frontend_drains_and_is_replaced() -> None:
    with server("--frontends", "1", "--devices", "cpu", "--decode-threads", "2") as process:
        process.wait_until_listening()
        process.wait_until_serving()
        with Client(process.target) as client, ThreadPoolExecutor(1) as pool:
            before = frontend(process)
            stuck = pool.submit(client.classify, jpeg(FOR_EVER), timeout_s=LONG_S)
            for _ in range(3):
                assert client.classify(jpeg(), timeout_s=LONG_S).predictions, "others are answered meanwhile"
            assert not stuck.done()
            with pytest.raises(errors.InvalidArgument, match="--decode-timeout-s"):
                stuck.result()
            assert eventually(lambda: frontend(process) not in (0, before), LONG_S)
            assert eventually(lambda: answers(client), LONG_S)
        assert re.search(r"frontend-0 has ended with status 0; another takes its place", process.log())


def test_one_process_says_what_is_lost_and_ends_when_told() -> None:
    with server("--decode-threads", "2") as process:
        process.wait_until_listening()
        process.wait_until_serving()
        with Client(process.target) as client:
            with pytest.raises(errors.InvalidArgument, match="--decode-timeout-s"):
                client.classify(jpeg(FOR_EVER), timeout_s=LONG_S)
            assert client.classify(jpeg(), timeout_s=LONG_S).predictions
        assert eventually(lambda: "only a restart gives them back" in process.log(), 10)
        process.terminate()
        started_s = time.monotonic()
        assert process.popen.wait(LONG_S) == 0
        assert time.monotonic() - started_s < 20


def answers(client: Client) -> bool:
    try:
        return bool(client.classify(jpeg(), timeout_s=LONG_S).predictions)
    except errors.WarmlaneError:
        return False
