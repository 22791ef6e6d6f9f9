"""Which files a GPU decodes: told from the header, in the event loop's thread. All others go to the decode threads.

header -> what the JPEG engines take -> the file into its slot -> hand on
"""

import functools
import logging
import time
from collections.abc import Callable

from pipeline import metrics
from pipeline.canvas import Geometry, find_window, resizes_in_graph
from pipeline.decode import notes_of
from pipeline.decoders import Preprocessed
from pipeline.errors import PipelineError
from pipeline.headers import Header, Limits, read_header
from pipeline.preprocess import Preprocess
from pipeline.request import Decoding, Encoded, Request

log = logging.getLogger(__name__)

DECODER = "nvjpeg"
# A longer header check would hold up all other calls; longer files are few, and of images too large for a canvas.
_MOST_BYTES = 256 << 10
# The engines take any size, but the memory that they need grows with it.
_MOST_PIXELS = 4_000_000
# Of smaller ones nvJPEG interpolates the chroma differently at the edges, by more than 1 level.
_LEAST_SIDE = 16
_PADDING = 2
# Chroma at full size, or halved along one axis or both (nvjpeg.h, NVJPEG_BACKEND_HARDWARE).
_SAMPLINGS = {((1, 1),), *(((h, v), (1, 1), (1, 1)) for h in (1, 2) for v in (1, 2))}


class GpuStage:
    """Puts files into their slots for a GPU to decode. For the event loop's thread.

    Args:
        hand_on: takes a request whose file lies in its slot.
    """

    def __init__(self, limits: Limits, hand_on: Callable[[Request], None]) -> None:
        self._limits = limits
        self._hand_on = hand_on

    def take(self, request: Request, model: Preprocessed) -> bool:
        """Whether a GPU is to decode it, or its header has failed it: then nothing is left to do here."""
        assert request.slot is not None
        image = request.image
        if not image.startswith(b"\xff\xd8"):
            return False
        if len(image) > min(_MOST_BYTES, len(request.slot.bytes)):
            metrics.count_route("too large")
            return False
        request.stamps.decode_start = time.monotonic_ns()
        try:
            return self._take(request, model)
        except PipelineError as error:
            request.abandon(error)
        except Exception as error:
            # As in the decode threads; raised from here, it would keep the slot.
            log.exception("a header failed in a way that no image should cause")
            request.abandon(error)
        return True

    def _take(self, request: Request, model: Preprocessed) -> bool:
        assert request.slot is not None
        header = read_header(request.image, self._limits)
        width, height = header.width, header.height
        left, top, geometry = padded_window(height, width, model.preprocess)
        canvas = len(request.slot.pixels)
        reason = why_not(header)
        fits = max(geometry.y.extent, geometry.x.extent) <= canvas
        if not reason and not (fits and resizes_in_graph(canvas, model.preprocess)):
            reason = "larger than the canvas"
        metrics.count_route(reason)
        if reason:
            return False
        request.slot.bytes[: len(request.image)] = request.image
        request.encoded = Encoded(len(request.image), left, top)
        request.image = b""
        request.geometry = geometry
        request.decoding = Decoding(header, notes_of(header), DECODER)
        self._hand_on(request)
        return True


@functools.lru_cache(maxsize=4096)
def padded_window(height: int, width: int, preprocess: Preprocess) -> tuple[int, int, Geometry]:
    """Left and top of what is decoded, in pixels, and how the crop samples it: a little more than it depends on.

    Where a part of an image is decoded, the chroma of its outermost pixels is interpolated without their neighbours.
    """
    window = find_window(height, width, preprocess)
    top, left = max(window.top - _PADDING, 0), max(window.left - _PADDING, 0)
    bottom, right = min(window.bottom + _PADDING, height), min(window.right + _PADDING, width)
    whole = window.whole
    return left, top, Geometry(whole.y.cut(top, bottom), whole.x.cut(left, right))


def why_not(header: Header) -> str:
    """What a GPU's JPEG engines do not take of a file, in a word or two; empty if they take it."""
    frame = header.jpeg
    if frame is None:
        return "not JPEG"
    checks = {
        "progressive": frame.progressive,
        "not baseline": not frame.baseline,
        "CMYK": frame.components == 4,
        "stored as RGB": frame.may_be_rgb,
        "chroma sampling": frame.sampling not in _SAMPLINGS,
        "several scans": frame.scans > 1,
        "incomplete": not frame.complete,
        "damaged header": bool(frame.junk_bytes),
        "turned": header.applied_orientation != 1,
        "too small": min(header.width, header.height) < _LEAST_SIDE,
        "too large": header.width * header.height > _MOST_PIXELS,
    }
    return next((reason for reason, is_so in checks.items() if is_so), "")
