"""The decode threads: header, decode, and the crop's window into the slot, one image a thread."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from pipeline.canvas import Reduced, identity_geometry, pick_reduction, place
from pipeline.decode import decode
from pipeline.errors import PipelineError, Unavailable
from pipeline.headers import Limits, read_header
from pipeline.preprocess import Preprocess
from pipeline.request import Decoding, Request

log = logging.getLogger(__name__)


class Preprocessed(Protocol):
    """Whatever says how its images are prepared."""

    @property
    def preprocess(self) -> Preprocess:
        """What a model's images go through."""


class Decoders:
    """A pool of threads.

    Args:
        threads: images decoded at a time.
        limits: what an image may have at most.
        hand_on: takes a decoded request, on the thread that decoded it; the slot is its own from there on.
        skip: see `options.Options.skip_decode`.
        own_process: no forward runs in this process, so that torch needs no threads of its own here.

    Attributes:
        undecoded_bytes: size of the encoded images that wait here or are being decoded.
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
        self._limits = limits
        self._hand_on = hand_on
        self._skip = skip
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(
            threads, thread_name_prefix="decode", initializer=_use_one_thread if own_process else None
        )

    def submit(self, request: Request, model: Preprocessed) -> None:
        """Queue an admitted request, whose slot has been taken. Its future tells the outcome."""
        if self._skip:
            self._pass_on(request, model)
            return
        size = len(request.image)
        self._count(size)
        try:
            self._pool.submit(self._decode, request, model, size)
        except RuntimeError:
            # The executor has been shut down.
            self._count(-size)
            request.abandon(Unavailable("the server has stopped"))

    def shutdown(self) -> None:
        """Decode what has been submitted, then end the threads."""
        self._pool.shutdown()

    def _decode(self, request: Request, model: Preprocessed, size: int) -> None:
        try:
            if not request.drop_if_dead("decode"):
                decode_into_slot(request, self._limits, model)
                self._hand_on(request)
        except PipelineError as error:
            request.abandon(error)
        except Exception as error:
            log.exception("decoding failed in a way that no image should cause")
            request.abandon(error)
        finally:
            self._count(-size)

    def _pass_on(self, request: Request, model: Preprocessed) -> None:
        request.image = b""
        request.stamps.decode_start = time.monotonic_ns()
        request.geometry = identity_geometry(model.preprocess)
        try:
            self._hand_on(request)
        except PipelineError as error:
            request.abandon(error)

    def _count(self, size: int) -> None:
        with self._counting:
            self.undecoded_bytes += size


def decode_into_slot(request: Request, limits: Limits, model: Preprocessed) -> None:
    """Header check, decode, and the crop's window into the request's slot.

    Raises:
        BadImage: the bytes cannot be classified.
    """
    assert request.slot is not None
    request.stamps.decode_start = time.monotonic_ns()
    header = read_header(request.image, limits)
    width, height = header.upright_size
    orientation, preprocess = header.applied_orientation, model.preprocess
    reduction = pick_reduction(height, width, orientation, preprocess) if limits.dct_scaling else 1
    decoded = decode(request.image, header, reduction=reduction)
    reduced = Reduced(height, width, decoded.reduction)
    request.geometry = place(decoded.pixels, orientation, preprocess, request.slot.pixels, reduced)
    request.decoding = Decoding(header, decoded.conversions, decoded.decoder)
    request.image = b""


def _use_one_thread() -> None:
    # A team of OpenMP threads for each decode thread would only take cores from the others.
    torch.set_num_threads(1)
