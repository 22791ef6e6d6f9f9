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

    @property
    def failed(self) -> int:
        """Images that were answered with an error."""
        return self.by.get("", 0)

    @property
    def img_s(self) -> float:
        """Images per second, without those that failed."""
        return (self.images - self.failed) / self.seconds

    @property
    def batch_fill(self) -> float:
        """Mean images in a batch."""
        return (self.images - self.failed) / self.batches if self.batches else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the images that each decoder has decoded."""
        return {name: count / self.images for name, count in sorted(self.by.items()) if name}

    def percentiles_ms(self, *percents: float) -> list[float]:
        """Of the latency; nan where nothing was answered."""
        return [float(ms) for ms in np.percentile(self.latencies_ms or [float("nan")], percents)]


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

    def run(
        self, in_flight: int, warm_up_s: float, seconds: float, turn: Callable[[], None], cool_down_s: float = 0.0
    ) -> Fed:
        """Keep `in_flight` images under way, then wait for the last; the window begins after `warm_up_s`.

        Args:
            turn: waits a moment for answers, and takes them in.
            cool_down_s: for how long the load goes on after the window, for those whose windows end later.
        """
        for _ in range(in_flight):
            self._submit()
        self._feed(warm_up_s, turn)
        started_s = time.monotonic()
        answers = self._feed(seconds, turn)
        elapsed_s = time.monotonic() - started_s
        self._feed(cool_down_s, turn)
        while len(self._answers) < in_flight:
            turn()
        self._answers.clear()
        batches = sum(1 / answer.batch_fill for answer in answers if answer.batch_fill)
        by = Counter(answer.decoder for answer in answers)
        return Fed(elapsed_s, len(answers), batches, [answer.ms for answer in answers], dict(by))

    def _feed(self, seconds: float, turn: Callable[[], None]) -> list[_Answer]:
        end_s, answers = time.monotonic() + seconds, list[_Answer]()
        while time.monotonic() < end_s:
            if not self._answers:
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
