"""The legacy service's thread and transforms, in this process, on the CPU.

What it proves: each rung does what it says, and computes the same as the reference but for the augmentation.
"""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from bench.ladder.answers import agreement, reference_top1
from bench.ladder.legacy_transforms import decode, make_prepare
from bench.ladder.legacy_worker import LegacyWorker
from bench.ladder.rungs import habits_at
from bench.mix import mix_images
from pipeline.model import Model
from pipeline.preprocess import Preprocess
from pipeline.reference import normalize, reference_levels
from tests.tiny_model import Tiny

CPU = torch.device("cpu")
FILES = mix_images("small")[:12]


class Recorder(Tiny):
    """Keeps the batch sizes that it was run with."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        return super().forward(images)


def model_of(module: nn.Module) -> Model:
    labels = tuple(map(str, range(50)))
    return Model("tiny", "v", module.eval().requires_grad_(False), labels, Preprocess())


@contextmanager
def working(rung: int, module: nn.Module | None = None) -> Iterator[LegacyWorker]:
    worker = LegacyWorker(model_of(module or Tiny()), habits_at(rung), CPU, batch_size=4)
    worker.start()
    worker.ready.result(60)
    yield worker
    worker.stop()


def top1(worker: LegacyWorker) -> list[int]:
    return [answer.result(60).indices[0] for answer in [worker.submit(file) for file in FILES]]


@pytest.mark.parametrize("rung", [2, 3, 4])
def test_rungs_without_augmentation_answer_as_the_reference(rung: int) -> None:
    with working(rung) as worker:
        found = top1(worker)
    assert agreement(found, reference_top1(model_of(Tiny()), FILES)) == 1.0


def test_augmentation_changes_the_input_and_its_seed_makes_it_the_same_each_time() -> None:
    first: list[tuple[float, ...]] = []
    again: list[tuple[float, ...]] = []
    for found in (first, again):
        with working(1) as worker:
            found += [tuple(worker.submit(file).result(60).scores) for file in FILES[:4]]
    with working(2) as worker:
        plain = [tuple(worker.submit(file).result(60).scores) for file in FILES[:4]]
    assert first == again
    assert first != plain


@pytest.mark.parametrize("rung", [2, 3, 4])
def test_transforms_are_within_a_level_of_the_reference(rung: int) -> None:
    preprocess = Preprocess()
    ours = make_prepare(preprocess, habits_at(rung), CPU)(FILES[:3])
    levels = torch.stack([reference_levels(np.asarray(decode(file)), preprocess) for file in FILES[:3]])
    apart = (ours - normalize(levels, preprocess)).abs().max().item() * 255 * max(preprocess.std)
    # Pillow and torchvision round differently: see tests/test_transforms.py.
    assert apart <= 2.05, f"{apart} levels apart"


def test_only_from_rung_3_on_is_every_batch_of_one_size() -> None:
    for rung, fixed in ((2, False), (3, True), (4, True)):
        recorder = Recorder()
        with working(rung, recorder) as worker:
            worker.submit(FILES[0]).result(60)
        assert (set(recorder.sizes) == {4}) is fixed
        assert (len(recorder.sizes) > 1) is fixed, "warm-up"


def test_a_batch_is_what_is_queued() -> None:
    recorder = Recorder()
    worker = LegacyWorker(model_of(recorder), habits_at(2), CPU, batch_size=4)
    answers = [worker.submit(file) for file in FILES[:6]]
    worker.start()
    assert [answer.result(60).batch_fill for answer in answers] == [4, 4, 4, 4, 2, 2]
    worker.stop()
    assert recorder.sizes == [4, 2]


@pytest.mark.parametrize(("rung", "expected"), [(0, 3 + 1), (1, 0)])
def test_numbers_are_read_off_the_device_on_rung_0_only(
    rung: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Tensor] = []
    item: Callable[[Tensor], float] = Tensor.item

    def counted(tensor: Tensor) -> float:
        if tensor.dtype == torch.float32:
            reads.append(tensor)
        return item(tensor)

    worker = LegacyWorker(model_of(Tiny()), habits_at(rung), CPU, batch_size=4)
    images = worker._prepare(FILES[:3])
    monkeypatch.setattr(Tensor, "item", counted)
    scores = worker._scores(images)
    if worker._habits.syncs:
        worker._measure_on_device(scores)
    assert len(reads) == expected


def test_rung_5_compiles_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[object] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: modes.append(options["mode"]))
    for rung in (4, 5):
        with working(rung) as worker:
            worker.submit(FILES[0]).result(60)
    assert modes == ["reduce-overhead"]


def test_one_bad_image_fails_its_batch_mates() -> None:
    worker = LegacyWorker(model_of(Tiny()), habits_at(0), CPU, batch_size=4)
    bad, good = worker.submit(b"no image"), worker.submit(FILES[0])
    worker.start()
    for answer in (bad, good):
        with pytest.raises(UnidentifiedImageError):
            answer.result(60)
    assert worker.submit(FILES[0]).result(60).batch_fill == 1
    worker.stop()


def test_a_model_that_fails_to_warm_up_is_told() -> None:
    class Broken(Tiny):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("no kernel for this")

    worker = LegacyWorker(model_of(Broken()), habits_at(3), CPU, batch_size=4)
    worker.start()
    with pytest.raises(RuntimeError, match="no kernel"):
        worker.ready.result(60)


def test_grey_and_transparent_files_become_rgb() -> None:
    file = io.BytesIO()
    Image.new("LA", (20, 10), (200, 128)).save(file, "PNG")
    assert decode(file.getvalue()).mode == "RGB"


def test_an_end_does_not_wait_for_a_batch_that_takes_long() -> None:
    release = threading.Event()

    class Slow(Tiny):
        def forward(self, images: Tensor) -> Tensor:
            release.wait(30)
            return super().forward(images)

    worker = LegacyWorker(model_of(Slow()), habits_at(2), CPU, batch_size=4)
    worker.start()
    answer = worker.submit(FILES[0])
    started_s = time.monotonic()
    worker.stop(timeout_s=0.1)
    assert time.monotonic() - started_s < 10
    release.set()
    answer.result(60)
