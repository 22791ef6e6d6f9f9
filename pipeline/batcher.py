"""The work-conserving batcher: a free lane takes what is queued, at once; while all lanes are busy, requests gather.

So an idle service adds no latency, and a loaded one fills its batches, without a timer.
"""

import threading
import time
from collections import deque
from typing import Protocol

from pipeline import metrics
from pipeline.errors import PipelineError
from pipeline.request import Batch, Request


class Source(Protocol):
    """Where an engine gets its batches: a `Batcher`, or an `arrivals.ArrivalQueue` fed by other processes."""

    batch_size: int

    def __len__(self) -> int:
        """Requests that are queued."""

    @property
    def seconds_per_batch(self) -> float:
        """See `Batcher`."""

    @property
    def finished(self) -> bool:
        """See `Batcher.finished`."""

    def put(self, *requests: Request) -> bool:
        """See `Batcher.put`."""

    def take(self, timeout_s: float | None, lanes: int = 1) -> Batch | None:
        """See `Batcher.take`."""

    def gather(self) -> None:
        """See `Batcher.gather`."""

    def note_batch(self, seconds: float) -> None:
        """See `Batcher.note_batch`."""

    def beat(self, since_ns: int) -> None:
        """Note that the engine's thread is at work and that no batch has been running since before `since_ns`."""

    def close(self) -> None:
        """See `Batcher.close`."""

    def fail_all(self, error: PipelineError) -> None:
        """See `Batcher.fail_all`."""


class Batcher:
    """A queue of decoded requests, emptied in batches by one engine thread.

    Args:
        batch_size: most images in a batch.
        max_wait_ms: how long the oldest request may wait for its batch to fill, in milliseconds. 0 never waits.

    Attributes:
        seconds_per_batch: pace of recent batches, whatever their fill; 0.0 before the first.
        begun_ns: since when the engine's thread does what it does now, or the oldest batch on a lane runs, in
            nanoseconds of CLOCK_MONOTONIC; 0 while it waits for work. It stands still if the device hangs.
    """

    def __init__(self, batch_size: int, max_wait_ms: float = 0.0) -> None:
        self.batch_size = batch_size
        self._max_wait_s = max_wait_ms / 1e3
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.seconds_per_batch = 0.0
        self.begun_ns = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def finished(self) -> bool:
        """Closed, and nothing is left to take."""
        return self._closed and not self._queue

    def put(self, *requests: Request) -> bool:
        """Queue decoded requests, whose slots belong to the engine from here on; False once the batcher is closed."""
        with self._changed:
            if self._closed:
                return False
            now = time.monotonic_ns()
            for request in requests:
                request.stamps.queued = now
            self._queue.extend(requests)
            self._changed.notify()
            return True

    def close(self) -> None:
        """Wake the engine for the last time; what is queued can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def gather(self) -> None:
        """Take in what has come while no lane is free: here, whoever submits does that."""

    def note_batch(self, seconds: float) -> None:
        """Take the time of a batch into the pace."""
        self.seconds_per_batch = smoothed(self.seconds_per_batch, seconds)

    def beat(self, since_ns: int) -> None:
        """See `begun_ns`."""
        self.begun_ns = since_ns

    def fail_all(self, error: PipelineError) -> None:
        """Fail everything that is queued."""
        while self._queue:
            self._queue.popleft().abandon(error)

    def take(self, timeout_s: float | None, lanes: int = 1) -> Batch | None:
        """The next batch of live requests; waits up to `timeout_s` for the first (None: until `put` or `close`).

        Args:
            lanes: that are idle, and that what is queued is shared out to.

        Returns:
            A batch of 1 to `batch_size` requests; None if nothing came, all that came was dead, or nothing ever will.
        """
        with self._changed:
            if timeout_s is None:
                self.begun_ns = 0
            has_news = self._changed.wait_for(lambda: self._queue or self._closed, timeout_s)
            self.begun_ns = self.begun_ns or time.monotonic_ns()
            if not has_news or not self._queue:
                return None
            if self._max_wait_s and not self._ripe(timeout_s):
                return None
            taken = [self._queue.popleft() for _ in range(share_of(len(self._queue), lanes, self.batch_size))]
        live = [request for request in taken if _claim(request)]
        if not live:
            return None
        batch = Batch(live)
        batch.stamp("batched")
        return batch

    def _ripe(self, timeout_s: float | None) -> bool:
        """Wait until the batch is full or its oldest request waited long enough; False if `timeout_s` ends before."""
        left_s = max(self._queue[0].stamps.queued / 1e9 + self._max_wait_s - time.monotonic(), 0.0)
        patience_s = left_s if timeout_s is None else min(left_s, timeout_s)
        full = self._changed.wait_for(lambda: len(self._queue) >= self.batch_size or self._closed, patience_s)
        return full or patience_s == left_s


def share_of(queued: int, lanes: int, batch_size: int) -> int:
    """How many of the requests that are queued one of so many idle lanes takes."""
    return min(batch_size, -(-queued // lanes))


def smoothed(pace: float, seconds: float) -> float:
    """The pace after one more batch: an exponential average over about ten."""
    return 0.9 * pace + 0.1 * seconds if pace else seconds


def _claim(request: Request) -> bool:
    """Take the request out of its caller's reach, unless it is dead already: then it never reaches a forward."""
    if request.drop_if_dead("batch"):
        return False
    # The caller may have cancelled between the check and here; a future that is not claimed would raise in set_result.
    if request.claim():
        return True
    metrics.DROPPED.labels("batch", "cancelled").inc()
    request.release_slot()
    return False
