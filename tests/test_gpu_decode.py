"""Decoding on a GPU, as far as it can be seen without one: the routes, the thread, the rows, and what is handed back.

`fake_jpeg.FakeJpeg` stands for the GPU's decoder.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from prometheus_client import REGISTRY

from pipeline import embedded, gpu_stage, lanes, metrics
from pipeline.canvas import crop_geometry, place
from pipeline.decode import decode
from pipeline.embedded import Pipeline
from pipeline.engine import Warm
from pipeline.errors import CorruptImage, NotAnImage
from pipeline.gpu_decode import GpuDecoder
from pipeline.gpu_open import check, open_gpu_decode, samples
from pipeline.gpu_rows import GpuRow, GpuRows
from pipeline.gpu_stage import GpuStage, why_not
from pipeline.headers import Limits, read_header
from pipeline.model import Model
from pipeline.nvjpeg import Job, NoJpegEngine, NvJpeg
from pipeline.options import Options
from pipeline.request import Encoded, Request, Stamps
from pipeline.slots import SlotPool
from tests.conftest import PHOTOGRAPHS
from tests.fake_jpeg import REFUSED, FakeJpeg
from tests.images.corpus import Sample, good
from tests.images.make import after_soi, encode, photo, photo_array, with_orientation
from tests.tiny_model import model as tiny

LONG_S = 30.0
CANVAS = 544
CPU = torch.device("cpu")


class Item:
    """Something to decode, that a caller may leave."""

    def __init__(self, file: bytes, *, is_left: bool = False) -> None:
        self.file = np.frombuffer(file, np.uint8)
        self.encoded: Encoded | None = Encoded(len(file), 0, 0)
        self.row_gpu: GpuRow | None = None
        self.stamps = Stamps()
        self.is_left = is_left

    @property
    def file_address(self) -> int:
        return int(self.file.ctypes.data)

    @property
    def extent(self) -> tuple[int, int]:
        return 160, 120

    def is_dead(self) -> bool:
        return self.is_left


class Thread:
    """The decoder's thread, and what it has handed on."""

    def __init__(self, fake: FakeJpeg, rows: int = 8, most: int = 4) -> None:
        self.fake = fake
        self.rows = GpuRows(rows, fake.canvas, CPU)
        self.handed: list[Item] = []
        self.decoder: GpuDecoder[Item] = GpuDecoder(fake, self.rows, most, self.handed.extend)

    def put(self, *items: Item) -> None:
        for item in items:
            self.decoder.put(item)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


@pytest.fixture
def thread() -> Iterator[Thread]:
    thread = Thread(FakeJpeg(160))
    yield thread
    thread.fake.may_decode.set()
    for item in thread.handed:
        if item.row_gpu is not None:
            item.row_gpu.release()
    thread.decoder.stop()


def file(quality: int = 90) -> bytes:
    return encode(photo(), "JPEG", quality=quality)


def refused_file() -> bytes:
    return after_soi(file(), REFUSED)


def test_pixels_are_in_the_row(thread: Thread) -> None:
    item = Item(file())
    thread.put(item)
    until(lambda: bool(thread.handed))
    assert item.row_gpu is not None
    pixels = item.row_gpu.flat.view(160, 160, 3)[:120].numpy()
    assert np.abs(pixels.astype(int) - np.asarray(photo())).mean() < 6
    assert item.encoded is None
    assert 0 < item.stamps.decoded <= time.monotonic_ns()


def test_what_gathers_meanwhile_is_decoded_together(thread: Thread) -> None:
    thread.fake.may_decode.clear()
    items = [Item(file()) for _ in range(6)]
    thread.put(items[0])
    until(lambda: thread.decoder._under_way == 1)
    thread.put(*items[1:])
    thread.fake.may_decode.set()
    until(lambda: len(thread.handed) == 6)
    assert thread.handed == items
    assert thread.fake.batches == [1, 4, 1]


def test_it_waits_for_rows(thread: Thread) -> None:
    items = [Item(file()) for _ in range(10)]
    thread.put(*items)
    until(lambda: len(thread.handed) == 8)
    time.sleep(0.05)
    assert len(thread.handed) == 8
    assert not thread.decoder.is_empty
    for item in items[:2]:
        assert item.row_gpu is not None
        item.row_gpu.release()
        item.row_gpu = None
    until(lambda: len(thread.handed) == 10)
    until(lambda: thread.decoder.is_empty)


def test_nothing_is_spent_on_what_nobody_waits_for(thread: Thread) -> None:
    thread.put(Item(file(), is_left=True))
    until(lambda: bool(thread.handed))
    assert thread.handed[0].row_gpu is None
    assert not thread.fake.batches


def test_a_file_that_it_refuses_leaves_its_neighbours_alone(thread: Thread) -> None:
    thread.fake.may_decode.clear()
    first = Item(file())
    thread.put(first)
    until(lambda: thread.decoder._under_way == 1)
    bad, good_one = Item(refused_file()), Item(file())
    thread.put(bad, good_one)
    thread.fake.may_decode.set()
    until(lambda: len(thread.handed) == 3)
    assert bad.row_gpu is None
    assert bad.encoded is not None
    assert good_one.row_gpu is not None
    assert len(thread.rows) == 6


def test_it_outlives_a_fault(thread: Thread) -> None:
    thread.fake.fault = RuntimeError("the device has coughed")
    bad, good_one = Item(file()), Item(file())
    thread.put(bad)
    until(lambda: len(thread.handed) == 1)
    thread.put(good_one)
    until(lambda: len(thread.handed) == 2)
    assert bad.row_gpu is None
    assert good_one.row_gpu is not None
    assert len(thread.rows) == 7


class _Halving(NvJpeg):
    """Without a device: some addresses are refused."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.calls: list[int] = []

    def _decode_all(self, jobs: Sequence[Job]) -> bool:
        self.calls.append(len(jobs))
        return not self.bad & {job.data for job in jobs}


@pytest.mark.parametrize("bad", [set(), {0}, {31}, {7, 8}, set(range(32))])
def test_refused_files_are_found_by_halves(bad: set[int]) -> None:
    decoder = _Halving(bad)
    jobs = [Job(number, 1, 0, (0, 0, 1, 1)) for number in range(32)]
    assert decoder._decode_or_halve(jobs) == [number not in bad for number in range(32)]
    assert len(decoder.calls) <= (1 + 10 * len(bad) if len(bad) < 3 else 63)


def test_stop_decodes_what_is_queued() -> None:
    thread = Thread(FakeJpeg(160), rows=20)
    items = [Item(file()) for _ in range(9)]
    thread.put(*items)
    thread.decoder.stop()
    assert thread.handed == items


def with_adobe(data: bytes, transform: int) -> bytes:
    """With an Adobe segment after the JFIF segment, which wins with libjpeg."""
    segment = b"\xff\xee\x00\x0eAdobe" + bytes([0, 100, 0, 0, 0, 0, transform])
    return data[:20] + segment + data[20:]


def with_components(data: bytes, names: bytes) -> bytes:
    """With other names for the three components, in the frame header and in the scan header."""
    changed = bytearray(data)
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    changed[frame + 10 : frame + 19 : 3] = names
    changed[scan + 5 : scan + 11 : 2] = names
    return bytes(changed)


ROUTES = {
    "a photograph": (file(), ""),
    "grey": (encode(photo(mode="L"), "JPEG"), ""),
    "full chroma": (encode(photo(), "JPEG", subsampling=0), ""),
    "half chroma": (encode(photo(), "JPEG", subsampling=1), ""),
    "quarter chroma in a row": (simplejpeg.encode_jpeg(photo_array(), colorsubsampling="411"), "chroma sampling"),
    "progressive": (encode(photo(), "JPEG", progressive=True), "progressive"),
    "CMYK": (encode(photo(mode="CMYK"), "JPEG"), "CMYK"),
    "RGB": (encode(photo(), "JPEG", keep_rgb=True), "stored as RGB"),
    "JFIF, and Adobe's sign of RGB": (with_adobe(file(), 0), "stored as RGB"),
    "JFIF, and Adobe's sign of YCbCr": (with_adobe(file(), 1), ""),
    "JFIF, and components named R, G, B": (with_components(file(), b"RGB"), "stored as RGB"),
    "turned": (with_orientation("JPEG", 6), "turned"),
    "not turned": (with_orientation("JPEG", 1), ""),
    "no end": (file()[:-2], "incomplete"),
    "more after the end": (file() + b"more", ""),
    "tiny": (encode(photo(15, 40), "JPEG"), "too small"),
    "huge": (encode(photo(2001, 2000), "JPEG"), "too large"),
    "PNG": (encode(photo(), "PNG"), "not JPEG"),
}


@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str) -> None:
    data, reason = ROUTES[name]
    assert why_not(read_header(data, Limits())) == reason


def test_ignored_orientation_is_no_reason() -> None:
    assert why_not(read_header(with_orientation("JPEG", 6), Limits(ignore_exif=True))) == ""


def test_every_reason_is_counted_from_0_on() -> None:
    assert {reason for _, reason in ROUTES.values()} - {"not JPEG"} <= set(metrics.ROUTES)


@pytest.mark.parametrize("sample", [sample for sample in good() if sample.format == "JPEG"], ids=str)
def test_what_is_staged_samples_what_the_cpu_would(sample: Sample) -> None:
    """Window and geometry are those of `canvas.place`, so that both ways give the same answer."""
    data = sample.data
    model, staged = tiny(), list[Request]()
    pool = SlotPool(1, 48)
    request = Request(data, "", pool.acquire()[0])
    if not GpuStage(Limits(), staged.append).take(request, model):
        assert not staged
        return
    assert staged == [request]
    assert request.slot is not None
    assert request.encoded is not None
    assert request.geometry is not None
    assert bytes(request.slot.bytes[: request.encoded.size]) == data
    fake = FakeJpeg(48)
    decoder: GpuDecoder[Request] = GpuDecoder(fake, GpuRows(1, 48, CPU), 1, lambda requests: None)
    decoder.put(request)
    decoder.stop()
    canvas = np.zeros((48, 48, 3), np.uint8)
    header = read_header(data, Limits())
    geometry = place(decode(data, header).pixels, 1, model.preprocess, canvas)
    # What is decoded for a GPU begins a little earlier.
    right, down = (
        round(padded.offset - cpu.offset)
        for padded, cpu in ((request.geometry.x, geometry.x), (request.geometry.y, geometry.y))
    )
    assert 0 <= right <= 2
    assert 0 <= down <= 2
    assert request.geometry.x.offset == pytest.approx(geometry.x.offset + right)
    assert (request.geometry.y.scale, request.geometry.x.scale) == (geometry.y.scale, geometry.x.scale)
    height, width = geometry.y.extent, geometry.x.extent
    found = request.pixels.view(48, 48, 3)[down : down + height, right : right + width].numpy()
    assert np.array_equal(found, canvas[:height, :width])


def not_for_it(request: Request) -> None:
    raise AssertionError("handed on")


def test_a_window_larger_than_the_canvas_is_for_the_cpu() -> None:
    request = Request(encode(photo(400, 300), "JPEG"), "", SlotPool(1, 48).acquire()[0])
    assert not GpuStage(Limits(), not_for_it).take(request, tiny())
    assert request.encoded is None


def test_a_long_file_is_for_the_cpu_and_counted() -> None:
    before = routed("too large")
    request = Request(file() + bytes(48 * 48 * 3), "", SlotPool(1, 48).acquire()[0])
    assert not GpuStage(Limits(), not_for_it).take(request, tiny())
    assert routed("too large") - before == 1


def test_a_bad_header_fails_at_once() -> None:
    request = Request(b"\xff\xd8\xff\xd9", "", SlotPool(1, 48).acquire()[0])
    assert GpuStage(Limits(), not_for_it).take(request, tiny())
    assert isinstance(request.future.exception(), CorruptImage)
    assert request.slot is None


def test_a_bug_costs_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: bytes, limits: Limits) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(gpu_stage, "read_header", fail)
    pool = SlotPool(1, 48)
    request = Request(file(), "", pool.acquire()[0])
    assert GpuStage(Limits(), not_for_it).take(request, tiny())
    assert isinstance(request.future.exception(), ZeroDivisionError)
    assert pool.in_use == 0


@pytest.mark.parametrize("shift", [0, 1])
def test_a_decoder_that_gives_the_same_pixels_is_taken(shift: int) -> None:
    fake = FakeJpeg(CANVAS, shift=shift)
    if shift:
        with pytest.raises(NoJpegEngine, match="differ"):
            check(fake, GpuRows(1, CANVAS, CPU), CANVAS)
    else:
        check(fake, GpuRows(1, CANVAS, CPU), CANVAS)
    assert len(fake.batches) == (1 if shift else len(samples()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("is_wanted", [True, False])
def test_without_a_gpu_one_line_says_so(caplog: pytest.LogCaptureFixture, is_wanted: bool) -> None:
    caplog.set_level("INFO")
    assert open_gpu_decode(torch.device("cuda:0"), CANVAS, 24, is_wanted=is_wanted) is None
    (record,) = caplog.records
    assert record.message.startswith("JPEGs are decoded on the CPU: ")
    assert record.levelname == ("WARNING" if is_wanted else "INFO")


def test_a_decoder_that_was_asked_for_where_no_gpu_is_at_work(caplog: pytest.LogCaptureFixture) -> None:
    options = Options(batch_size=1, slots=1, threads=1, decode_threads=1, compile=False)
    lanes.build_lanes(tiny(), options)
    assert "JPEGs are decoded" not in caplog.text
    lanes.build_lanes(tiny(), replace(options, decode="gpu"))
    assert "JPEGs are decoded on the CPU: no GPU is at work" in caplog.text


@pytest.mark.parametrize("fields", [{}, {"skip_decode": True}, {"decode": "cpu"}], ids=str)
def test_when_a_gpu_decodes(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    """Not where nothing is to be decoded at all, for one."""
    fake = FakeJpeg(48)
    monkeypatch.setattr(lanes, "open_gpu_decode", lambda *args, **kwargs: fake.opened())
    options = Options(batch_size=1, slots=1, threads=1, decode_threads=1, device="cuda:0", **fields)
    warm = lanes._with_gpu_decode(Warm([], "eager"), options, 48, CPU)
    assert (warm.gpu_decode is None) == bool(fields)


Serve = Callable[[Model, FakeJpeg], Pipeline]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a pipeline whose device decodes with a fake."""
    started: list[tuple[Pipeline, FakeJpeg]] = []
    threads = torch.get_num_threads()

    def start(model: Model, fake: FakeJpeg) -> Pipeline:
        def build(model: Model, options: Options) -> Warm:
            return replace(lanes.build_lanes(model, options), gpu_decode=fake.opened())

        monkeypatch.setattr(embedded, "build_lanes", build)
        options = Options(batch_size=4, slots=24, threads=1, decode_threads=2, compile=False, canvas=fake.canvas)
        pipeline = Pipeline(model, options, Limits())
        pipeline.start().result(LONG_S)
        started.append((pipeline, fake))
        until(lambda: pipeline.info.gpu_decode != "")
        return pipeline

    yield start
    for pipeline, fake in started:
        fake.may_decode.set()
        pipeline.stop()
        assert pipeline.slots.in_use == 0
    torch.set_num_threads(threads)


def submit(pipeline: Pipeline, image: bytes, deadline: float = math.inf) -> Request:
    request = Request(image, "", pipeline.slots.acquire()[0], deadline)
    pipeline.submit(request)
    return request


def routed(reason: str) -> float:
    metrics.flush()
    return REGISTRY.get_sample_value("warmlane_gpu_decode_total", {"reason": reason}) or 0.0


def test_photographs_get_the_answers_that_the_cpu_gives(serve: Serve, default_model: Model) -> None:
    fake = FakeJpeg(CANVAS)
    pipeline = serve(default_model, fake)
    assert pipeline.info.gpu_decode == "fake"
    files = [path.read_bytes() for path in sorted(PHOTOGRAPHS.glob("*.jpg"))]
    before = routed("")
    requests = [submit(pipeline, data) for data in files]
    on_gpu = [request.future.result(LONG_S) for request in requests]
    assert sum(fake.batches) == len(files)
    assert routed("") - before == len(files)
    assert {request.decoding.decoder for request in requests if request.decoding} == {"nvjpeg"}
    stamps = requests[0].stamps
    assert 0 < stamps.decode_start <= stamps.decoded <= stamps.queued <= stamps.batched
    pipeline._stage = None
    for result, data in zip(on_gpu, files, strict=True):
        other = submit(pipeline, data).future.result(LONG_S)
        assert np.array_equal(result.indices[:5], other.indices[:5])
        assert np.abs(result.scores - other.scores).max() < 1e-4


def test_what_the_gpu_refuses_the_cpu_decodes(serve: Serve) -> None:
    pipeline, before = serve(tiny(), FakeJpeg(160)), routed("refused by the GPU")
    request = submit(pipeline, refused_file())
    expected = submit(pipeline, file()).future.result(LONG_S)
    assert np.array_equal(request.future.result(LONG_S).scores, expected.scores)
    assert request.decoding is not None
    assert request.decoding.decoder == "libjpeg-turbo"
    assert routed("refused by the GPU") - before == 1


def test_what_both_refuse_is_refused_with_the_cpus_words(serve: Serve) -> None:
    pipeline = serve(tiny(), FakeJpeg(160))
    data = refused_file()
    cut = data[: len(data) * 2 // 3] + b"\xff\xd9"
    error = submit(pipeline, cut).future.exception(LONG_S)
    assert isinstance(error, CorruptImage)
    assert "image data is missing" in str(error)


def test_other_files_go_to_the_decode_threads(serve: Serve) -> None:
    fake = FakeJpeg(160)
    pipeline = serve(tiny(), fake)
    assert submit(pipeline, encode(photo(), "PNG")).future.result(LONG_S)
    assert submit(pipeline, encode(photo(), "JPEG", progressive=True)).future.result(LONG_S)
    assert isinstance(submit(pipeline, b"text").future.exception(LONG_S), NotAnImage)
    assert not fake.batches


def test_callers_that_leave_before_it_is_decoded(serve: Serve) -> None:
    fake = FakeJpeg(160)
    pipeline = serve(tiny(), fake)
    fake.may_decode.clear()
    held = submit(pipeline, file())
    until(lambda: pipeline._gpu_decoder is not None and pipeline._gpu_decoder._under_way == 1)
    leaves, late = submit(pipeline, file()), submit(pipeline, file(), time.monotonic() + 0.05)
    stays = submit(pipeline, file())
    assert leaves.future.cancel()
    time.sleep(0.06)
    fake.may_decode.set()
    assert held.future.result(LONG_S)
    assert stays.future.result(LONG_S)
    assert "deadline" in str(late.future.exception(LONG_S))
    assert sum(fake.batches) == 2, "nothing is decoded for those who have left"


def test_a_decoder_that_hangs_is_seen(serve: Serve) -> None:
    fake = FakeJpeg(160)
    pipeline = serve(tiny(), fake)
    assert pipeline.silent_s() < 0.1
    fake.may_decode.clear()
    request = submit(pipeline, file())
    until(lambda: pipeline.silent_s() > 0.3)
    fake.may_decode.set()
    assert request.future.result(LONG_S)
    until(lambda: pipeline.silent_s() == 0.0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decoder_whose_thread_has_ended_is_seen(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = serve(tiny(), FakeJpeg(160))
    decoder = pipeline._gpu_decoder
    assert decoder is not None

    def fail(items: Sequence[Request]) -> None:
        for request in items:
            request.abandon(ZeroDivisionError("a bug"))
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(decoder, "_hand_on", fail)
    assert submit(pipeline, file()).future.exception(LONG_S)
    until(lambda: pipeline.silent_s() > 0.3)


def test_many_at_once_each_get_their_own(serve: Serve) -> None:
    pipeline = serve(tiny(), FakeJpeg(160))
    files = [file(quality) for quality in range(20, 95, 5)]
    alone = [submit(pipeline, data).future.result(LONG_S).scores for data in files]
    barrier = threading.Barrier(4)
    wrong: list[int] = []

    def call(first: int) -> None:
        barrier.wait()
        for turn in range(40):
            index = (first * 7 + turn) % len(files)
            scores = submit(pipeline, files[index]).future.result(LONG_S).scores
            if not np.allclose(scores, alone[index], atol=1e-5):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(first,)) for first in range(4)]
    run_all(threads)
    assert not wrong


def run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_tiny_models_windows_lie_off_the_edge() -> None:
    """Or the comparison of windows above would show little."""
    geometry = crop_geometry(120, 160, tiny().preprocess)
    assert geometry.x.offset > 10
