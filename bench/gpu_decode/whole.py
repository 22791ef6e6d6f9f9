"""The whole way in one process, without gRPC: from a JPEG's bytes to its answer."""

import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.embedded import Pipeline
from pipeline.request import Request, Result

_POLL_S = 50e-6
_WARM_UP_S = 1.0


@dataclass(frozen=True, slots=True)
class Whole:
    """What one process does.

    Attributes:
        in_flight: images under way at all times.
        img_s: images per second.
        batch_fill: mean images of a forward.
        p50_ms, p99_ms: from submit to answer.
        by: share of the images that each decoder has decoded.
    """

    in_flight: int
    img_s: float
    batch_fill: float
    p50_ms: float
    p99_ms: float
    by: dict[str, float]


class _Answer(NamedTuple):
    ms: float
    batch_fill: int
    decoder: str


class _Load:
    """A closed loop on one thread, as a frontend's event loop is one."""

    def __init__(self, pipeline: Pipeline, files: Sequence[bytes]) -> None:
        self._pipeline = pipeline
        self._files = files
        self._answered: deque[_Answer] = deque()
        self._next = 0

    def run(self, in_flight: int, seconds: float) -> Whole:
        """Keep `in_flight` under way for so long, then wait for the last."""
        started_s = time.perf_counter()
        for _ in range(in_flight):
            self._submit()
        answers: list[_Answer] = []
        while (elapsed_s := time.perf_counter() - started_s) < seconds:
            fresh = self._collect()
            for _ in fresh:
                self._submit()
            answers += fresh
            if not fresh:
                time.sleep(_POLL_S)
        late = 0
        while late < in_flight:
            late += len(self._collect())
            time.sleep(_POLL_S)
        return _summary(in_flight, answers, elapsed_s)

    def _collect(self) -> list[_Answer]:
        return [self._answered.popleft() for _ in range(len(self._answered))]

    def _submit(self) -> None:
        file = self._files[self._next % len(self._files)]
        self._next += 1
        request = Request(file, "", self._pipeline.slots.acquire()[0])
        sent_s = time.perf_counter()

        def note(future: Future[Result]) -> None:
            decoder = request.decoding.decoder if request.decoding else ""
            self._answered.append(_Answer(1e3 * (time.perf_counter() - sent_s), future.result().batch_fill, decoder))

        request.future.add_done_callback(note)
        self._pipeline.submit(request)


def _summary(in_flight: int, answers: Sequence[_Answer], elapsed_s: float) -> Whole:
    p50, p99 = np.percentile([answer.ms for answer in answers], [50, 99])
    by = Counter(answer.decoder for answer in answers)
    fill = len(answers) / sum(1 / answer.batch_fill for answer in answers)
    shares = {name: count / len(answers) for name, count in by.items()}
    return Whole(in_flight, len(answers) / elapsed_s, fill, float(p50), float(p99), shares)


def measure(pipeline: Pipeline, files: Sequence[bytes], in_flight: int, seconds: float) -> Whole:
    """Throughput and latency with so many images under way."""
    load = _Load(pipeline, files)
    load.run(in_flight, _WARM_UP_S)
    return load.run(in_flight, seconds)
