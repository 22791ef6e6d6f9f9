"""Files in shared slots that an engine's GPU decodes: `fake_jpeg` is the GPU, `test_shared_slots` has the rig."""

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from PIL import Image

from pipeline.errors import CorruptImage, DeadlineExceeded
from pipeline.preprocess import Preprocess
from pipeline.request import Request
from pipeline.slots import Slot, SlotPool
from pipeline.wire import Sender
from tests.fake_jpeg import REFUSED, FakeJpeg
from tests.images.make import after_soi, encode
from tests.test_shared_slots import FREED, INFO, SLOTS, LateLane, Rig, write

CANVAS = 24
ON_GPU = replace(INFO, canvas=CANVAS, preprocess=Preprocess(resize=20, crop=(16, 16)), gpu_decode="fake")


class Gpu:
    """A rig with one engine that decodes."""

    def __init__(self, *, rows: int = 8, decodes: bool = True) -> None:
        self.rig = Rig(skip_decode=False, info=ON_GPU)
        self.fake = FakeJpeg(CANVAS)
        self.opened = self.fake.opened(rows)
        self.lane = LateLane()
        self.engine = self.rig.start_engine(0, self.lane)
        if decodes:
            self.engine.queue.decode_with(self.opened)
        self.rig.use(self.engine)

    def submit(self, image: bytes, frontend: int = 0, deadline: float = math.inf) -> Request:
        pipeline = self.rig.frontends[frontend]
        request = Request(image, "", pipeline.slots.acquire()[0], deadline)
        pipeline.submit(request)
        return request

    def wait(self, *requests: Request) -> None:
        self.rig.until(lambda: all(request.future.done() for request in requests))

    def assert_all_free(self) -> None:
        self.rig.assert_all_free()
        self.rig.until(lambda: len(self.opened.rows) == 8)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    overwrite_freed(monkeypatch)
    gpu = Gpu()
    yield gpu
    gpu.fake.may_decode.set()
    gpu.rig.close()


def overwrite_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    release = SlotPool.release

    def overwrite_and_release(pool: SlotPool, slot: Slot) -> None:
        write(slot, FREED)
        release(pool, slot)

    monkeypatch.setattr(SlotPool, "release", overwrite_and_release)


def number(level: int) -> int:
    """What `LateLane` reads of an image of one level."""
    return level * 0x01010101 - (level >= 128) * 2**32


def solid(level: int) -> bytes:
    """A JPEG that decodes to exactly this level."""
    return encode(Image.new("L", (20, 20), level), "JPEG", quality=100)


def refused(level: int) -> bytes:
    return after_soi(solid(level), REFUSED)


def test_files_become_answers(gpu: Gpu) -> None:
    levels = list(range(10, 10 + 8 * 4, 4))
    requests = [gpu.submit(solid(level), frontend=level // 4 % 2) for level in levels]
    assert gpu.rig.answers(requests) == [number(level) for level in levels]
    assert sum(gpu.fake.batches) == len(levels)
    stamps = requests[0].stamps
    assert stamps.queued < stamps.decoded <= stamps.batched
    gpu.assert_all_free()


def test_what_the_gpu_refuses_its_frontend_decodes(gpu: Gpu) -> None:
    requests = [gpu.submit(refused(40)), gpu.submit(solid(80))]
    assert gpu.rig.answers(requests) == [number(40), number(80)]
    assert [request.decoding.decoder for request in requests if request.decoding] == ["libjpeg-turbo", "nvjpeg"]
    gpu.assert_all_free()


def test_what_both_refuse_fails_with_the_reason(gpu: Gpu) -> None:
    cut = gpu.submit(refused(40)[:-30] + b"\xff\xd9")
    gpu.wait(cut)
    assert isinstance(cut.future.exception(), CorruptImage)
    gpu.assert_all_free()


def test_an_engine_that_cannot_decode_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite_freed(monkeypatch)
    gpu = Gpu(decodes=False)
    try:
        assert gpu.rig.answers([gpu.submit(solid(60))]) == [number(60)]
        gpu.assert_all_free()
    finally:
        gpu.rig.close()


def test_callers_that_leave_while_it_decodes(gpu: Gpu) -> None:
    gpu.fake.may_decode.clear()
    leaves = gpu.submit(solid(10))
    late = gpu.submit(solid(20), deadline=time.monotonic() + 0.05)
    stays = gpu.submit(solid(30))
    assert leaves.future.cancel()
    time.sleep(0.06)
    gpu.fake.may_decode.set()
    gpu.wait(stays, late)
    assert isinstance(late.future.exception(), DeadlineExceeded)
    assert int(stays.future.result().indices[0]) == number(30)
    gpu.rig.until(lambda: gpu.rig.frontends[0].slots.in_use == 0)
    gpu.assert_all_free()


def test_a_dead_frontends_slots_are_not_idle_while_they_are_read(gpu: Gpu) -> None:
    gpu.fake.may_decode.clear()
    for level in (10, 20, 30):
        gpu.submit(solid(level))
    gpu.rig.until(lambda: gpu.engine.queue._decoder is not None and not gpu.engine.queue._decoder.is_empty)
    gpu.engine.forget(Sender(0, 0))
    time.sleep(0.1)
    assert not gpu.engine.idle, "its files are still being read"
    gpu.fake.may_decode.set()
    gpu.rig.until(lambda: bool(gpu.engine.idle))
    assert gpu.engine.idle[-1] == Sender(0, 0)
    gpu.rig.until(lambda: len(gpu.opened.rows) == 8)
    assert not gpu.lane.started


def test_an_engine_that_stops_answers_what_it_decodes(gpu: Gpu) -> None:
    gpu.fake.may_decode.clear()
    requests = [gpu.submit(solid(level)) for level in range(10, 10 + SLOTS)]
    gpu.rig.until(lambda: gpu.engine.queue._decoder is not None and gpu.engine.queue._decoder._under_way > 0)
    gpu.engine.queue.close()
    time.sleep(0.05)
    gpu.fake.may_decode.set()
    assert gpu.rig.answers(requests) == [number(level) for level in range(10, 10 + SLOTS)]


def test_many_rounds_with_slots_overwritten_at_once(gpu: Gpu) -> None:
    for turn in range(30):
        levels = [(turn * 7 + index * 5) % 120 for index in range(SLOTS)]
        requests = [gpu.submit(solid(level), frontend=index % 2) for index, level in enumerate(levels)]
        assert gpu.rig.answers(requests) == [number(level) for level in levels]
    gpu.assert_all_free()


def test_a_decoder_that_hangs_stops_the_heartbeat(gpu: Gpu) -> None:
    """Or the supervisor would never replace its engine."""
    heartbeat = gpu.rig.page.heartbeat
    gpu.fake.may_decode.clear()
    request = gpu.submit(solid(10))
    gpu.rig.until(lambda: gpu.engine.queue._decoder is not None and gpu.engine.queue._decoder.begun_ns > 0)
    begun_s = time.monotonic()
    time.sleep(0.5)
    assert heartbeat[0] <= begun_s
    gpu.fake.may_decode.set()
    gpu.wait(request)
    gpu.rig.until(lambda: heartbeat[0] > begun_s + 0.4)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decoder_whose_thread_has_ended_stops_the_heartbeat(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = gpu.engine.queue._decoder
    assert decoder is not None

    def fail(items: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(decoder, "_hand_on", fail)
    gpu.submit(solid(10))
    gpu.rig.until(lambda: not decoder._thread.is_alive())
    ended_s = time.monotonic()
    time.sleep(0.5)
    assert gpu.rig.page.heartbeat[0] <= ended_s
    # Nobody decodes it any more, and an engine that stops would wait for it.
    monkeypatch.setattr(decoder, "_under_way", 0)


def test_a_bell_that_rings_after_the_images_were_seen_keeps_nobody_awake(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[int] = []
    monkeypatch.setattr(gpu.engine.queue, "beat", turns.append)
    gpu.engine.queue._on_decoded([])
    time.sleep(0.6)
    assert 0 < len(turns) < 20


def test_files_of_a_dead_frontend_that_come_late_are_not_read(gpu: Gpu) -> None:
    gpu.engine.forget(Sender(0, 0))
    gpu.rig.until(lambda: bool(gpu.engine.idle))
    gpu.submit(solid(10))
    later = gpu.submit(solid(20), frontend=1)
    assert gpu.rig.answers([later]) == [number(20)]
    time.sleep(0.1)
    assert sum(gpu.fake.batches) == 1
    assert gpu.engine.idle == [Sender(0, 0)]
