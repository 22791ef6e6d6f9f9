"""The decode threads: header, decode, and the crop's window into the slot, one image a thread."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch

from pipeline import metrics
from pipeline.budget import Budget
from pipeline.canvas import Reduced, identity_geometry, pick_reduction, place
from pipeline.decode import PillowDecode, Pixels, decode, memory_bytes
from pipeline.errors import Overloaded, PipelineError, Unavailable
from pipeline.headers import Header, Limits, read_header
from pipeline.overruns import Overruns
from pipeline.pillow_decode import decode_with_pillow
from pipeline.pillow_process import PillowProcesses
from pipeline.preprocess import Preprocess
from pipeline.request import Decoding, Request

log = logging.getLogger(__name__)

# Pixels from which an image waits for its turn. What takes long to decode counts, even where few pixels come of it.
LARGE_PIXELS = 4_000_000
# Their share of the slots: while they wait, they hold one each, and small ones need some too.
_LARGE_SHARE = 0.75
# The pace of large images: 0.1 to 1 s each.
_LARGE_RETRY_MS = 500
_GRACE_S = 1.0
_LOOK_S = 0.1
# Of processes (nice(2)), not of threads: one that stands back while it holds Python's lock would hold up all others.
_LARGE_NICENESS = 10


class Preprocessed(Protocol):
    """Whatever says how its images are prepared."""

    @property
    def preprocess(self) -> Preprocess:
        """What a model's images go through."""


class Decoders:
    """Threads that decode: some for images of usual size, and as many for large ones, so that these hold nobody up.

    Args:
        threads: images of usual size decoded at a time.
        limits: what an image may have at most.
        hand_on: takes a decoded request, on the thread that decoded it; the slot is its own from there on.
        skip: see `options.Options.skip_decode`.
        own_process: no forward runs in this process, so that torch needs no threads of its own here.

    Attributes:
        undecoded_bytes: size of the encoded images that wait here or are being decoded.
        on_room: called, on any thread, whenever that has fallen.
        slots: how many images there can be, of which only a share may be large.
        overruns: decodes that nothing can stop.
    """

    def __init__(
        self,
        threads: int,
        limits: Limits,
        hand_on: Callable[[Request], None],
        *,
        skip: bool = False,
        own_process: bool = False,
    ) -> None:
        self.undecoded_bytes = 0
        self.slots = 1
        self.on_room: Callable[[], None] | None = None
        # Processes are killed before anybody looks for threads that are late.
        self.overruns = Overruns(limits.decode_timeout_s + _GRACE_S if limits.decode_timeout_s else 0.0)
        self._limits = limits
        self._hand_on = hand_on
        self._skip = skip
        self._counting = threading.Lock()
        self._large = 0
        self._budget = Budget(limits.max_decoded_bytes)
        self._pillow = PillowProcesses(limits.decode_timeout_s)
        self._large_pillow = PillowProcesses(limits.decode_timeout_s, _LARGE_NICENESS)
        begin = _use_one_thread if own_process else None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode", initializer=begin)
        self._large_pool = ThreadPoolExecutor(threads, thread_name_prefix="decode-large", initializer=begin)

    def submit(self, request: Request, model: Preprocessed) -> None:
        """Queue an admitted request, whose slot has been taken. Its future tells the outcome."""
        if self._skip:
            self._pass_on(request, model)
            return
        self._count(len(request.image))
        self._queue(self._pool, request, self._take, model)

    def shutdown(self) -> None:
        """Decode what has been submitted, then end the threads, except those that were given up."""
        for pool in (self._pool, self._large_pool):
            ending = threading.Thread(target=pool.shutdown, daemon=True)
            ending.start()
            while ending.is_alive() and not self.overruns.lost:
                ending.join(_LOOK_S)
        self._pillow.close()
        self._large_pillow.close()

    def _queue(self, pool: ThreadPoolExecutor, request: Request, work: Callable[..., None], *rest: Any) -> None:
        try:
            pool.submit(self._answering, pool, request, len(request.image), work, *rest)
        except RuntimeError:
            # The executor has been shut down.
            self._leave(pool, len(request.image))
            request.abandon(Unavailable("the server has stopped"))

    def _answering(
        self, pool: ThreadPoolExecutor, request: Request, size: int, work: Callable[..., None], *rest: Any
    ) -> None:
        """Do the work; whatever it raises is the image's answer."""
        try:
            if not request.drop_if_dead("decode"):
                work(request, *rest)
        except PipelineError as error:
            request.abandon(error)
        except Exception as error:
            log.exception("decoding failed in a way that no image should cause")
            request.abandon(error)
        finally:
            self._leave(pool, size)

    def _take(self, request: Request, model: Preprocessed) -> None:
        """Decode an image of usual size, and queue a large one anew."""
        request.stamps.decode_start = time.monotonic_ns()
        header = read_header(request.image, self._limits)
        if header.pixels > LARGE_PIXELS:
            self._enter_large()
            self._count(len(request.image))
            self._queue(self._large_pool, request, self._take_large, header, model)
        else:
            self._decode(request, header, model, self._pillow.decode)

    def _take_large(self, request: Request, header: Header, model: Preprocessed) -> None:
        with self._budget.taken(memory_bytes(header, reduction_of(header, self._limits, model))):
            if not request.drop_if_dead("decode"):
                request.stamps.decode_start = time.monotonic_ns()
                self._decode(request, header, model, self._large_pillow.decode)

    def _decode(self, request: Request, header: Header, model: Preprocessed, with_pillow: PillowDecode) -> None:
        def in_process(data: bytes, kind: str, size: tuple[int, int], reduction: int) -> tuple[Pixels, list[str]]:
            self.overruns.excuse(request)
            return with_pillow(data, kind, size, reduction)

        self.overruns.begin(request)
        try:
            decode_window(request, header, self._limits, model, in_process)
        except Exception:
            if self._was_given_up(request):
                return
            raise
        if not self._was_given_up(request):
            self._hand_on(request)

    def _was_given_up(self, request: Request) -> bool:
        """Whether the caller has been answered meanwhile; the slot is free then."""
        if self.overruns.end(request):
            return False
        request.release_slot()
        return True

    def _pass_on(self, request: Request, model: Preprocessed) -> None:
        request.image = b""
        request.stamps.decode_start = time.monotonic_ns()
        request.geometry = identity_geometry(model.preprocess)
        try:
            self._hand_on(request)
        except PipelineError as error:
            request.abandon(error)

    def _enter_large(self) -> None:
        most = max(int(_LARGE_SHARE * self.slots), 1)
        with self._counting:
            if self._large >= most:
                metrics.DROPPED.labels("decode", "overloaded").inc()
                raise Overloaded(
                    f"{most} images of over {LARGE_PIXELS} pixels are waiting or being decoded: no more may (--slots)",
                    _LARGE_RETRY_MS,
                )
            self._large += 1

    def _leave(self, pool: ThreadPoolExecutor, size: int) -> None:
        if pool is self._large_pool:
            with self._counting:
                self._large -= 1
        self._count(-size)

    def _count(self, size: int) -> None:
        with self._counting:
            self.undecoded_bytes += size
        if size < 0 and self.on_room is not None:
            self.on_room()


def decode_into_slot(request: Request, limits: Limits, model: Preprocessed) -> None:
    """Header check, decode, and the crop's window into the request's slot, all on this thread.

    Raises:
        BadImage: the bytes cannot be classified.
    """
    request.stamps.decode_start = time.monotonic_ns()
    decode_window(request, read_header(request.image, limits), limits, model)


def decode_window(
    request: Request,
    header: Header,
    limits: Limits,
    model: Preprocessed,
    with_pillow: PillowDecode = decode_with_pillow,
) -> None:
    """Decode, and the crop's window into the request's slot. Raises `BadImage`."""
    assert request.slot is not None
    decoded = decode(request.image, header, reduction=reduction_of(header, limits, model), with_pillow=with_pillow)
    reduced = Reduced(*header.upright_size[::-1], decoded.reduction)
    orientation = header.applied_orientation
    request.geometry = place(decoded.pixels, orientation, model.preprocess, request.slot.pixels, reduced)
    request.decoding = Decoding(header, decoded.conversions, decoded.decoder)
    request.image = b""


def reduction_of(header: Header, limits: Limits, model: Preprocessed) -> int:
    """By how much an image is decoded smaller; see `canvas.pick_reduction`."""
    if not limits.prescale:
        return 1
    width, height = header.upright_size
    return pick_reduction(height, width, header.applied_orientation, model.preprocess)


def _use_one_thread() -> None:
    # A team of OpenMP threads for each decode thread would only take cores from the others.
    torch.set_num_threads(1)
