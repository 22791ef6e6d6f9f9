"""The legacy service behind its gRPC front: one thread takes what is queued, decodes, transforms, runs, answers.

The same thread does everything of a batch in turn, as handlers of common model servers do, so the GPU waits for the CPU
and the CPU for the GPU.
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.ladder.legacy_transforms import make_prepare
from bench.ladder.rungs import Habits
from pipeline import metrics
from pipeline.model import Model

TOP_K = 5
# Compiling, and then recording the CUDA graph, takes three calls.
_WARM_UP_RUNS = 5
_SEED = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The best `TOP_K` classes of one image, and how many images shared its batch."""

    scores: Sequence[float]
    indices: Sequence[int]
    batch_fill: int


@dataclass(frozen=True, slots=True)
class _Call:
    file: bytes
    answer: Future[Answer] = field(default_factory=Future)


class LegacyWorker:
    """Classifies files on a thread of its own.

    Args:
        model: put on `device` as it is, in float32.
        habits: what it does wrong.

    Attributes:
        ready: resolves once it is warm, or fails with what went wrong.
    """

    def __init__(self, model: Model, habits: Habits, device: torch.device, batch_size: int) -> None:
        self.ready: Future[None] = Future()
        self._habits = habits
        self._device = device
        self._batch_size = batch_size
        self._crop = model.preprocess.crop
        self._prepare = make_prepare(model.preprocess, habits, device)
        self._net = model.module
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._confidence = self._entropy = 0.0
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, file: bytes) -> Future[Answer]:
        """Queue a file; its future fails with whatever the batch that carried it failed with."""
        call = _Call(file)
        self._queue.put(call)
        return call.answer

    def stop(self, timeout_s: float = 30.0) -> None:
        """Answer what is queued, then end the thread; waits no longer than `timeout_s` seconds for it."""
        self._queue.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        torch.manual_seed(_SEED)
        torch.backends.cudnn.benchmark = self._habits.varies
        try:
            self._net.to(self._device)
            self._warm_up()
        except BaseException as error:
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        with torch.inference_mode():
            while batch := self._take():
                self._answer(batch)

    @torch.inference_mode()
    def _warm_up(self) -> None:
        if not self._habits.eager:
            self._net.compile(mode="reduce-overhead")
        if not self._habits.varies:
            for _ in range(_WARM_UP_RUNS):
                self._scores(torch.zeros(1, 3, *self._crop, device=self._device)).cpu()

    def _take(self) -> list[_Call]:
        """What is queued, up to the batch size; waits for the first. Empty at the end."""
        taken = [self._queue.get()]
        while len(taken) < self._batch_size and not self._queue.empty():
            taken.append(self._queue.get())
        if None in taken:
            self._queue.put(None)
        return [call for call in taken if call is not None]

    def _answer(self, batch: Sequence[_Call]) -> None:
        try:
            answers = self._classify([call.file for call in batch])
        except Exception as error:
            # As found: one bad image fails its batch mates.
            for call in batch:
                call.answer.set_exception(error)
            return
        metrics.BATCH_FILL.observe(len(batch))
        for call, answer in zip(batch, answers, strict=True):
            call.answer.set_result(answer)

    def _classify(self, files: Sequence[bytes]) -> list[Answer]:
        scores = self._scores(self._prepare(files))
        if self._habits.syncs:
            self._measure_on_device(scores)
        best = scores.topk(min(TOP_K, scores.shape[1]))
        values, indices = best.values.cpu(), best.indices.cpu()
        self._confidence += float(values[:, 0].sum())
        return [Answer(values[row].tolist(), indices[row].tolist(), len(files)) for row in range(len(files))]

    def _scores(self, images: Tensor) -> Tensor:
        """float32 [n, 3, *crop] to float32 [n, classes]."""
        size = len(images)
        if not self._habits.varies:
            images = torch.cat([images, images.new_zeros(self._batch_size - size, *images.shape[1:])])
        logits: Tensor = self._net(images)
        return logits[:size].softmax(dim=1)

    def _measure_on_device(self, scores: Tensor) -> None:
        """Two figures for a dashboard, and one wait for the device each time they are read."""
        for row in scores:
            self._confidence += row.max().item()
        self._entropy += -(scores * scores.clamp(min=1e-12).log()).sum(dim=1).mean().item()
