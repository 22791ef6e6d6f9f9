"""The thread that has a GPU decode: files in slots become pixels in rows of device memory.

    put -> take what is queued, as far as rows are free -> decode, one call -> hand on

It waits for the device after each call, which the engine's thread never does. Decode batches are not the forward's:
whatever has gathered meanwhile is decoded together.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from pipeline.gpu_rows import GpuRow, GpuRows
from pipeline.nvjpeg import Job
from pipeline.request import Encoded, Stamps

log = logging.getLogger(__name__)


class JpegDecoder(Protocol):
    """What decodes; see `nvjpeg.NvJpeg`."""

    def decode(self, jobs: Sequence[Job]) -> list[bool]:
        """See `nvjpeg.NvJpeg.decode`."""


class Decodable(Protocol):
    """An image whose file lies in a slot: a `request.Request` or an `arrivals.Arrival`."""

    encoded: Encoded | None
    row_gpu: GpuRow | None
    stamps: Stamps

    @property
    def file_address(self) -> int:
        """Where its file begins, in host memory."""

    @property
    def extent(self) -> tuple[int, int]:
        """Width and height of the window, in pixels."""

    def is_dead(self) -> bool:
        """Whether nobody waits for it any more."""


Item = TypeVar("Item", bound=Decodable)


class GpuDecoder(Generic[Item]):
    """Decodes on a thread of its own.

    Args:
        most: images decoded at a time.
        hand_on: takes what has left this thread, in order: an image with a row was decoded; one without has nobody
            who waits, or still has its `encoded`: the GPU does not take it.

    Attributes:
        begun_ns: when the thread began what it does now, in nanoseconds of CLOCK_MONOTONIC; 0 while it waits. It stands
            still if the device hangs, and if an error that nobody foresaw has ended the thread.
    """

    def __init__(
        self, decoder: JpegDecoder, rows: GpuRows, most: int, hand_on: Callable[[Sequence[Item]], None]
    ) -> None:
        self._decoder = decoder
        self._rows = rows
        self._most = most
        self._hand_on = hand_on
        self._queue: deque[Item] = deque()
        self._changed = threading.Condition()
        self._is_waiting = self._is_closed = False
        self._under_way = self.begun_ns = 0
        rows.on_release = self._wake
        self._thread = threading.Thread(target=self._run, name="gpu-decode", daemon=True)
        self._thread.start()

    @property
    def is_empty(self) -> bool:
        """Whether all that was put has been handed on."""
        return not self._queue and not self._under_way

    def put(self, item: Item) -> None:
        """Queue an image. From any thread; its slot may not be touched until it is handed on."""
        self._queue.append(item)
        self._wake()

    def stop(self) -> None:
        """Decode what is queued, then end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _wake(self) -> None:
        # The thread says that it waits before it looks for the last time, so that no wake-up is lost; most calls need
        # no lock.
        if self._is_waiting:
            with self._changed:
                self._changed.notify()

    def _run(self) -> None:
        while items := self._take():
            self.begun_ns = time.monotonic_ns()
            self._decode([item for item in items if not item.is_dead()])
            self._hand_on(items)
            self._under_way = self.begun_ns = 0

    def _take(self) -> list[Item]:
        """What is to be decoded next; waits for it. Empty once there will be nothing."""
        with self._changed:
            self._is_waiting = True
            while not (self._queue and len(self._rows)) and not (self._is_closed and not self._queue):
                self._changed.wait()
            self._is_waiting = False
        count = min(len(self._queue), len(self._rows), self._most)
        self._under_way = count
        return [self._queue.popleft() for _ in range(count)]

    def _decode(self, items: Sequence[Item]) -> None:
        rows = self._rows.take(len(items))
        decoded = self._try([_job(item, row) for item, row in zip(items, rows, strict=True)]) if items else []
        now = time.monotonic_ns()
        for item, row, is_decoded in zip(items, rows, decoded, strict=True):
            if is_decoded:
                item.row_gpu, item.encoded, item.stamps.decoded = row, None, now
            else:
                row.release()

    def _try(self, jobs: Sequence[Job]) -> list[bool]:
        try:
            return self._decoder.decode(jobs)
        except Exception:
            # The device may be lost: the engine's thread will meet that too. Meanwhile the CPU decodes.
            log.exception("the GPU failed to decode %d images", len(jobs))
            return [False] * len(jobs)


def _job(item: Decodable, row: GpuRow) -> Job:
    encoded = item.encoded
    assert encoded is not None
    return Job(item.file_address, encoded.size, row.address, (encoded.left, encoded.top, *item.extent))
