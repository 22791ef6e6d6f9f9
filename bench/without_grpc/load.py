"""A closed loop into a backend, and what came of it."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from pipeline.backend import Backend
from pipeline.request import Request, Result


@dataclass(frozen=True, slots=True)
class Fed:
    """What one feeder, or all of them, have seen in their window.

    Attributes:
        seconds: length of the window.
        images: answered in it.
        batches: that they came in: an image counts for its share of one.
        latencies_ms: of each image, from submit to answer.
        by: images by what has decoded them; "" for those that failed.
    """

    seconds: float
    images: int
    batches: float
    latencies_ms: list[float]
    by: dict[str, int]


def together(fed: Sequence[Fed]) -> Fed:
    """Of feeders that have run at the same time."""
    by: Counter[str] = Counter()
    for each in fed:
        by.update(each.by)
    return Fed(
        float(np.mean([each.seconds for each in fed])),
        sum(each.images for each in fed),
        sum(each.batches for each in fed),
        [ms for each in fed for ms in each.latencies_ms],
        dict(by),
    )


class _Answer(NamedTuple):
    ms: float
    batch_fill: int
    decoder: str


@dataclass(slots=True)
class ClosedLoop:
    """For each image that is answered, another is submitted.

    Args:
        files: encoded images, by turns.
    """

    backend: Backend
    files: Sequence[bytes]
    _answers: deque[_Answer] = field(default_factory=deque)
    _next: int = 0

    def run(self, in_flight: int, warm_up_s: float, seconds: float, turn: Callable[[], None]) -> Fed:
        """Keep `in_flight` images under way; the window begins after `warm_up_s`.

        Args:
            turn: waits a moment for answers, and takes them in.
        """
        for _ in range(in_flight):
            self._submit()
        self._feed(warm_up_s, turn)
        started_s = time.monotonic()
        answers = self._feed(seconds, turn)
        elapsed_s = time.monotonic() - started_s
        # The others' windows end a little later, and shall see the same load.
        self._feed(warm_up_s, turn)
        batches = sum(1 / answer.batch_fill for answer in answers if answer.batch_fill)
        by = Counter(answer.decoder for answer in answers)
        return Fed(elapsed_s, len(answers), batches, [answer.ms for answer in answers], dict(by))

    def _feed(self, seconds: float, turn: Callable[[], None]) -> list[_Answer]:
        end_s, answers = time.monotonic() + seconds, list[_Answer]()
        while time.monotonic() < end_s:
            turn()
            for _ in range(len(self._answers)):
                answers.append(self._answers.popleft())
                self._submit()
        return answers

    def _submit(self) -> None:
        file = self.files[self._next % len(self.files)]
        self._next += 1
        request = Request(file, "", self.backend.slots.acquire()[0])
        request.future.add_done_callback(partial(self._note, request, time.monotonic()))
        self.backend.submit(request)

    def _note(self, request: Request, sent_s: float, future: "Future[Result]") -> None:
        is_answered = future.exception() is None
        decoder = (request.decoding.decoder if request.decoding else "none") if is_answered else ""
        fill = future.result().batch_fill if is_answered else 0
        self._answers.append(_Answer(1e3 * (time.monotonic() - sent_s), fill, decoder))
