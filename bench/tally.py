"""What the callers of one process have seen: answers within the measurement, errors, and answers that were wrong."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.expected import Expected
from bench.summary import Rows, sample_row
from warmlane.results import Timings
from warmlane.v1 import classifier_pb2 as pb

WRONG_ANSWER = "WRONG_ANSWER"


class _Prediction(Protocol):
    @property
    def index(self) -> int: ...

    @property
    def score(self) -> float: ...


class Answer(Protocol):
    """What a call returns, from the client or as a message."""

    @property
    def predictions(self) -> Sequence[_Prediction]: ...

    @property
    def timings(self) -> Timings | pb.Timings: ...


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when answers count, in seconds of CLOCK_MONOTONIC; without an end where calls are counted."""

    open_s: float
    stop_s: float

    def left_s(self) -> float | None:
        """Seconds until it closes; None if it does not."""
        return None if math.isinf(self.stop_s) else max(0.0, self.stop_s - time.monotonic())

    def holds(self, at_s: float) -> bool:
        """Whether a moment lies in it."""
        return self.open_s <= at_s <= self.stop_s


class Tally:
    """Takes every answer and every error.

    Args:
        expected: of each file, or nothing where answers are not checked; see `bench.expected`.

    Attributes:
        rows: the answers that count.
        errors: the others, by gRPC status, those of the warm-up too.
        checked: answers that were held against what is expected; agreed: those whose first class was the expected one.
        due: calls scheduled within the window.
        sending_s: from the window's opening until the last of them was sent, in seconds.
        in_calls_s: that callers who wait spent in calls within the window, added up over their images.
    """

    def __init__(self, window: Window, expected: Sequence[Expected | None] = ()) -> None:
        self.window = window
        self.rows = Rows()
        self.errors: Counter[str] = Counter()
        self.checked = self.agreed = self.due = 0
        self.sending_s = self.in_calls_s = 0.0
        self._expected = expected

    def answered(self, file: int, sent_s: float, answer: Answer) -> None:
        """Of a caller who waits for answers: it counts if it came within the window."""
        now_s = time.monotonic()
        self._check(file, answer)
        self.in_calls_s += max(0.0, min(now_s, self.window.stop_s) - max(sent_s, self.window.open_s))
        if self.window.holds(now_s):
            self.rows.append(sample_row(1e3 * (now_s - sent_s), answer.timings, at_s=now_s - self.window.open_s))

    def answered_on_schedule(self, file: int, due_s: float, sent_s: float, answer: Answer) -> None:
        """Of a caller with a schedule: it counts if it was due within the window, however late it came."""
        now_s = time.monotonic()
        self._check(file, answer)
        if self.window.holds(due_s):
            lag_ms, at_s = 1e3 * (sent_s - due_s), due_s - self.window.open_s
            self.rows.append(sample_row(1e3 * (now_s - due_s), answer.timings, lag_ms, at_s))

    def sending(self, due_s: float, sent_s: float) -> None:
        """A call with a schedule is sent."""
        if self.window.holds(due_s):
            self.due += 1
            self.sending_s = max(self.sending_s, sent_s - self.window.open_s)

    def failed(self, status: str, images: int = 1) -> None:
        """Of any caller."""
        self.errors[status] += images

    def _check(self, file: int, answer: Answer) -> None:
        if not answer.predictions:
            self.errors["no predictions"] += 1
        elif self._expected and (expected := self._expected[file]):
            first = answer.predictions[0]
            self.checked += 1
            self.agreed += first.index == expected.top1
            if not expected.fits(first.index, first.score):
                self.errors[WRONG_ANSWER] += 1
