"""Large images wait for their turn by the memory that they take, and small ones do not wait for them.

`decode_window` is a fake for the large ones: it takes as long as the test says.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pipeline import decoders
from pipeline.budget import Budget
from pipeline.decode import memory_bytes
from pipeline.decoders import LARGE_PIXELS
from pipeline.embedded import Pipeline
from pipeline.errors import DeadlineExceeded, Overloaded
from pipeline.headers import Header, Limits, read_header
from pipeline.options import Options
from pipeline.request import Request
from server.admission import Admission
from tests.images.make import encode, photo
from tests.serving import eventually
from tests.tiny_model import model as tiny

LONG_S = 60.0
OPTIONS = Options(batch_size=1, slots=8, threads=1, decode_threads=2, compile=False)
LARGE = encode(photo(2500, 1700), "BMP")
MEMORY = memory_bytes(read_header(LARGE, Limits()))


class Decoding:
    """How many large images are being decoded, and have been; they end one by one when told."""

    def __init__(self) -> None:
        self.now = self.most = self.ended = 0
        self.may_end = threading.Semaphore(0)
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.may_end.acquire(timeout=LONG_S)
        with self._lock:
            self.now -= 1
            self.ended += 1


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    decoding, decode_window = Decoding(), decoders.decode_window

    def decode(request: Request, header: Header, *how: Any) -> None:
        if header.pixels > LARGE_PIXELS:
            decoding.run()
        decode_window(request, header, *how)

    monkeypatch.setattr(decoders, "decode_window", decode)
    return decoding


@pytest.fixture(params=[1, 2])
def turns(request: pytest.FixtureRequest) -> int:
    """For how many large images there is memory at a time."""
    return int(request.param)


@pytest.fixture
def pipeline(turns: int, decoding: Decoding) -> Iterator[Pipeline]:
    pipeline = Pipeline(tiny(), OPTIONS, Limits(max_decoded_bytes=turns * MEMORY))
    pipeline.start().result(LONG_S)
    yield pipeline
    decoding.may_end.release(100)
    pipeline.stop()
    assert pipeline.slots.in_use == 0


def submit(pipeline: Pipeline, image: bytes, **fields: Any) -> Request:
    request = Request(image, "", pipeline.slots.acquire()[0], **fields)
    pipeline.submit(request)
    return request


def test_small_images_pass_and_large_ones_take_turns(pipeline: Pipeline, decoding: Decoding, turns: int) -> None:
    large = [submit(pipeline, LARGE) for _ in range(5)]
    assert eventually(lambda: decoding.now == turns, 10)
    for _ in range(10):
        assert submit(pipeline, encode(photo(), "JPEG")).future.result(LONG_S)
    assert not any(each.future.done() for each in large)
    assert pipeline.decoders.undecoded_bytes == 5 * len(LARGE)
    for _ in large:
        decoding.may_end.release()
    for each in large:
        assert each.future.result(LONG_S)
    assert decoding.most == turns
    assert pipeline.decoders.undecoded_bytes == 0


def test_large_ones_leave_slots_for_small_ones(pipeline: Pipeline, decoding: Decoding, turns: int) -> None:
    most = 6
    large = [submit(pipeline, LARGE) for _ in range(most)]
    assert eventually(lambda: decoding.now == turns and pipeline.decoders._large == most, 10)
    with pytest.raises(Overloaded, match="6 images of over 4000000 pixels are waiting") as refused:
        submit(pipeline, LARGE).future.result(LONG_S)
    assert refused.value.retry_after_ms > 0
    assert submit(pipeline, encode(photo(), "JPEG")).future.result(LONG_S)
    decoding.may_end.release(100)
    for each in large:
        assert each.future.result(LONG_S)
    assert submit(pipeline, LARGE).future.result(LONG_S), "there is room again"
    assert eventually(lambda: pipeline.decoders._large == 0)


def test_a_stream_that_waits_for_bytes_is_woken_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image's slot may be free before its bytes are."""
    pipeline = Pipeline(tiny(), OPTIONS, Limits())
    count = pipeline.decoders._count

    def count_late(size: int) -> None:
        time.sleep(0.2 if size < 0 else 0.0)
        count(size)

    monkeypatch.setattr(pipeline.decoders, "_count", count_late)

    async def wait() -> None:
        admission = Admission(pipeline, asyncio.get_running_loop(), 10, 10)
        submit(pipeline, b"no image")
        slot = await asyncio.wait_for(admission.wait_for_slot(b"another"), 5)
        slot.release()

    asyncio.run(wait())
    pipeline.stop()


def test_one_that_expires_while_it_waits_is_not_decoded(pipeline: Pipeline, decoding: Decoding, turns: int) -> None:
    first = [submit(pipeline, LARGE) for _ in range(turns)]
    assert eventually(lambda: decoding.now == turns, 10)
    late = submit(pipeline, LARGE, deadline=time.monotonic() + 0.2)
    time.sleep(0.3)
    decoding.may_end.release(turns)
    with pytest.raises(DeadlineExceeded, match="before decode"):
        late.future.result(LONG_S)
    for each in first:
        assert each.future.result(LONG_S)
    assert decoding.ended == turns


def test_a_budget_is_kept_and_one_that_needs_more_goes_alone() -> None:
    budget, inside, order = Budget(10), threading.Semaphore(0), list[int]()

    def take(size: int) -> None:
        with budget.taken(size):
            order.append(size)
            inside.acquire()

    threads = [threading.Thread(target=take, args=(size,)) for size in (6, 25, 4)]
    for number, thread in enumerate(threads):
        thread.start()
        assert eventually(lambda: len(order) == 1, 5), number
        time.sleep(0.05)
    inside.release()
    assert eventually(lambda: order == [6, 25], 5), "4 would have fitted beside 6, but came behind 25"
    time.sleep(0.05)
    assert order == [6, 25]
    inside.release(2)
    for thread in threads:
        thread.join(5)
    assert order == [6, 25, 4]


def test_memory_by_kind_of_file() -> None:
    pixels = 640 * 480
    for kind, options, expected in (
        ("JPEG", {}, 3),
        ("JPEG", {"progressive": True}, 9),
        ("PNG", {}, 18),
    ):
        header = read_header(encode(photo(640, 480), kind, **options), Limits())
        assert memory_bytes(header) == expected * pixels
    baseline = read_header(encode(photo(640, 480), "JPEG"), Limits())
    assert memory_bytes(baseline, 4) == 3 * pixels // 16
