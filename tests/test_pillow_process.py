"""Pillow in processes of its own: the same pictures and refusals as in a thread, and an end to those that do not end.

Slow and crashing decoders are a fake, `tests.slow_worker`.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipeline import pillow_process
from pipeline.decode import SCRATCH_BYTES, decode
from pipeline.embedded import Pipeline
from pipeline.errors import BadImage, CorruptImage, DecodeTimeout
from pipeline.headers import Limits, read_header
from pipeline.options import Options
from pipeline.pillow_process import PillowProcess, PillowProcesses
from pipeline.request import Request
from tests.images.corpus import Sample, bad, good
from tests.images.make import encode, photo
from tests.serving import eventually
from tests.slow_worker import CRASHES, FOR_EVER, KILLED, RAISES
from tests.tiny_model import model as tiny

TIMEOUT_S = 0.4
LONG_S = 60.0
OPTIONS = Options(batch_size=1, slots=4, threads=1, decode_threads=1, compile=False)


@pytest.fixture(scope="module")
def pillow() -> Iterator[PillowProcess]:
    process = PillowProcess(LONG_S)
    yield process
    process.close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[PillowProcess]:
    """With the fake decoder, once its process has started."""
    monkeypatch.setattr(pillow_process, "WORKER", "tests.slow_worker")
    process = PillowProcess(LONG_S)
    process.decode(png(20), "PNG", (20, 20))
    process.timeout_s = TIMEOUT_S
    yield process
    process.close()


def png(width: int, height: int = 20) -> bytes:
    return encode(photo(width, height), "PNG")


def workers() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [child for child in found if any("_worker" in word for word in child.cmdline())]


@pytest.mark.parametrize("sample", [sample for sample in good() if sample.decoded_by == "pillow"], ids=str)
def test_pictures_are_those_of_a_thread(pillow: PillowProcess, sample: Sample) -> None:
    header = read_header(sample.data, Limits())
    here, there = decode(sample.data, header), decode(sample.data, header, with_pillow=pillow.decode)
    assert np.array_equal(here.pixels, there.pixels)
    assert here.conversions == there.conversions


@pytest.mark.parametrize("sample", [sample for sample in bad() if not sample.data.startswith(b"\xff\xd8")], ids=str)
def test_refusals_are_those_of_a_thread(pillow: PillowProcess, sample: Sample) -> None:
    with pytest.raises(BadImage) as here:
        decode(sample.data, read_header(sample.data, Limits()))
    with pytest.raises(BadImage) as there:
        decode(sample.data, read_header(sample.data, Limits()), with_pillow=pillow.decode)
    assert (type(here.value), str(here.value)) == (type(there.value), str(there.value))


def test_large_pictures_have_memory_of_their_own(pillow: PillowProcess) -> None:
    width, height = 2500, 1700
    assert 3 * width * height > SCRATCH_BYTES
    data = encode(photo(width, height), "BMP")
    assert len(data) > SCRATCH_BYTES
    first, _ = pillow.decode(data, "BMP", (width, height))
    pillow.decode(png(20), "PNG", (20, 20))
    assert np.array_equal(first, np.asarray(photo(width, height))), "it holds after the next decode"


def test_the_process_is_light(pillow: PillowProcess) -> None:
    pillow.decode(png(20), "PNG", (20, 20))
    assert pillow.pid is not None
    maps = Path(f"/proc/{pillow.pid}/maps").read_text()
    assert "_imaging" in maps, "Pillow is there"
    assert not any(word in maps for word in ("torch", "grpc", "zmq"))


def test_one_that_takes_too_long_is_killed_and_replaced(slow: PillowProcess) -> None:
    before = slow.pid
    assert before is not None
    started_s = time.monotonic()
    with pytest.raises(DecodeTimeout, match=r"0\.4 s \(--decode-timeout-s\)"):
        slow.decode(png(FOR_EVER), "PNG", (FOR_EVER, 20))
    assert TIMEOUT_S <= time.monotonic() - started_s < TIMEOUT_S + 5
    assert not psutil.pid_exists(before)
    slow.timeout_s = LONG_S
    slow.decode(png(20), "PNG", (20, 20))
    assert slow.pid != before


def test_a_crash_is_the_files_fault(slow: PillowProcess, caplog: pytest.LogCaptureFixture) -> None:
    slow.timeout_s = LONG_S
    with pytest.raises(CorruptImage, match="its decoder crashed"):
        slow.decode(png(CRASHES), "PNG", (CRASHES, 20))
    assert "SIGSEGV" in caplog.text
    slow.decode(png(20), "PNG", (20, 20))


def test_one_that_the_kernel_ends_says_nothing_of_the_file(slow: PillowProcess) -> None:
    """As it does where memory runs out."""
    slow.timeout_s = LONG_S
    with pytest.raises(RuntimeError, match="ended with status -9"):
        slow.decode(png(KILLED), "PNG", (KILLED, 20))
    slow.decode(png(20), "PNG", (20, 20))


def test_one_that_is_killed_between_two_images_costs_none(slow: PillowProcess) -> None:
    assert slow.pid is not None
    culprit = psutil.Process(slow.pid)
    culprit.kill()
    assert eventually(lambda: culprit.status() == psutil.STATUS_ZOMBIE, 5)
    slow.timeout_s = LONG_S
    assert slow.decode(png(20), "PNG", (20, 20))[0].shape == (20, 20, 3)


def test_what_no_image_should_cause_is_no_bad_image(slow: PillowProcess) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        slow.decode(png(RAISES), "PNG", (RAISES, 20))


def test_a_thread_takes_its_process_with_it() -> None:
    processes = PillowProcesses(LONG_S)
    seen: list[psutil.Process] = []

    def work() -> None:
        processes.decode(png(20), "PNG", (20, 20))
        seen.extend(workers())

    thread = threading.Thread(target=work)
    before = workers()
    thread.start()
    thread.join()
    (own,) = [child for child in seen if child not in before]
    assert eventually(lambda: own.status() == psutil.STATUS_ZOMBIE, 5)
    processes.close()
    assert not own.is_running()


def test_without_a_limit_there_are_no_processes() -> None:
    before = workers()
    PillowProcesses(0.0).decode(png(20), "PNG", (20, 20))
    assert workers() == before


def test_a_slot_is_free_only_once_the_culprit_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_process, "WORKER", "tests.slow_worker")
    pipeline = Pipeline(tiny(), OPTIONS, Limits(decode_timeout_s=2.0))
    pipeline.start().result(LONG_S)
    culprits: list[psutil.Process] = []
    alive: list[bool] = []
    pipeline.slots.on_release = lambda: alive.append(any(each.is_running() for each in culprits))
    request = Request(png(FOR_EVER), "", pipeline.slots.acquire()[0])
    before = workers()
    pipeline.submit(request)
    assert eventually(lambda: len(workers()) > len(before), 10)
    culprits += [child for child in workers() if child not in before]
    with pytest.raises(DecodeTimeout):
        request.future.result(LONG_S)
    assert eventually(lambda: bool(alive), 5)
    assert alive == [False]
    healthy = Request(png(20), "", pipeline.slots.acquire()[0])
    pipeline.submit(healthy)
    assert healthy.future.result(LONG_S).scores.shape == (10,)
    pipeline.stop()
    assert workers() == before


def test_its_start_is_no_part_of_an_images_time() -> None:
    process = PillowProcess(0.05)
    assert process.decode(png(20), "PNG", (20, 20))[0].shape == (20, 20, 3)
    process.close()
