"""Encoded bytes to RGB pixels: one policy for every format, written down in `pipeline.to_rgb`.

JPEG goes through libjpeg-turbo with the accurate DCT and smooth chroma upsampling, which gives Pillow's pixels exactly
and leaves Python's lock; everything else, and the JPEGs that its binding does not take, goes through Pillow.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import simplejpeg

from pipeline.errors import CorruptImage, UnsupportedImage
from pipeline.headers import Header
from pipeline.jpeg_frame import JpegFrame
from pipeline.jpeg_tidy import tidy_header
from pipeline.pillow_decode import decode_with_pillow
from pipeline.to_rgb import cmyk_to_rgb

Pixels = npt.NDArray[np.uint8]

# Four megapixels: what cameras send is larger, but rare, and would stay allocated once a thread.
SCRATCH_BYTES = 3 * 4_000_000
# Measured, of RGB, alpha, palettes and 16 bits; libwebp has two canvases of its own.
_PILLOW_PIXEL_BYTES, _REDUCED_PIXEL_BYTES, _REDUCED_WEBP_PIXEL_BYTES = 18, 10, 16

_END_MARKER = b"\xff\xd9"

# Warnings of libjpeg (jerror.h) that leave every pixel known.
_HARMLESS = re.compile(
    r"extraneous bytes before marker|unknown JFIF revision|Unknown Adobe color transform|Invalid SOS|bad ICC marker"
)
_CUT = re.compile(r"[Pp]remature end")
# What the binding refuses and Pillow may still read: sampling factors that the TurboJPEG API has no name for.
_NOT_TAKEN = re.compile(r"Could not determine subsampling|Unsupported color conversion")

_scratch = threading.local()


@dataclass(frozen=True, slots=True)
class Decoded:
    """An image as pixels.

    Attributes:
        pixels: uint8 [height, width, 3], RGB, in stored orientation: `header.applied_orientation` is yet to be.
        header: as given to `decode`.
        conversions: what was done on the way and what was left out, in words for the caller.
        decoder: "libjpeg-turbo" or "pillow".
        reduction: the pixels are 1/reduction of the header's width and height, rounded up.
    """

    pixels: Pixels
    header: Header
    conversions: list[str] = field(default_factory=list)
    decoder: str = "pillow"
    reduction: int = 1


# As `decode_with_pillow`.
PillowDecode = Callable[[bytes, str, tuple[int, int], int], tuple[Pixels, list[str]]]


def decode(
    data: bytes,
    header: Header,
    *,
    reuse: bool = True,
    reduction: int = 1,
    with_pillow: PillowDecode = decode_with_pillow,
) -> Decoded:
    """Decodes `data`, whose header was read by `pipeline.headers.read_header`.

    The pixels of a JPEG of up to `SCRATCH_BYTES` lie in a buffer of the calling thread: they hold until that thread
    decodes again. With `reuse=False` they are the caller's own.

    A `reduction` of 2, 4 or 8 asks for as many times fewer rows and columns, which a JPEG's inverse DCT gives for less
    than the whole image costs; of other formats it saves what comes after. `with_pillow` decodes what is not for
    libjpeg-turbo.

    Raises:
        CorruptImage: truncated or damaged.
        UnsupportedImage: a kind of image that has no meaning as 8-bit RGB, or that no decoder here reads.
    """
    notes = _notes(header)
    if header.jpeg is None:
        return _decode_other(data, header, notes, reduction, with_pillow)
    _refuse(header.jpeg)
    notes += _jpeg_notes(header.jpeg)
    try:
        return _decode_jpeg(data, header, header.jpeg, notes, reuse, reduction)
    except ValueError as error:
        if not _NOT_TAKEN.search(str(error)):
            raise _jpeg_fault(str(error)) from None
    return _decode_other(data, header, notes, reduction, with_pillow)


def memory_bytes(header: Header, reduction: int = 1) -> int:
    """About the most memory that `decode` takes for an image, in bytes."""
    frame = header.jpeg
    if frame is None:
        reduced = _REDUCED_WEBP_PIXEL_BYTES if header.format == "WEBP" else _REDUCED_PIXEL_BYTES
        return (reduced if reduction > 1 else _PILLOW_PIXEL_BYTES) * header.pixels
    # A progressive JPEG's coefficients, of 16 bits, are all kept until the last scan; CMYK is converted by Pillow.
    coefficients = 2 * frame.components * header.pixels if frame.scans > 1 else 0
    return coefficients + (3 if frame.components < 4 else _PILLOW_PIXEL_BYTES) * header.pixels // reduction**2


def _notes(header: Header) -> list[str]:
    notes = []
    if header.frames > 1:
        notes.append(f"first of {header.frames} {'pages' if header.format == 'TIFF' else 'frames'}")
    if header.has_profile:
        notes.append("colour profile ignored")
    if header.orientation != header.applied_orientation:
        notes.append(f"EXIF orientation {header.orientation} ignored")
    return notes


def _refuse(frame: JpegFrame) -> None:
    if frame.precision != 8:
        raise UnsupportedImage(f"JPEG of {frame.precision} bits a sample is not supported; 8 bits are")
    if frame.hierarchical:
        raise UnsupportedImage("hierarchical JPEG is not supported; baseline and progressive are")
    if frame.colour == "unknown":
        raise UnsupportedImage(f"JPEG of {frame.components} components is not supported; 1, 3 and 4 are")
    if not frame.complete and not frame.all_sent:
        raise CorruptImage("truncated JPEG: the file ends between two of its scans")


def _decode_other(data: bytes, header: Header, notes: list[str], reduction: int, with_pillow: PillowDecode) -> Decoded:
    pixels, conversions = with_pillow(data, header.format, (header.width, header.height), reduction)
    return Decoded(pixels, header, [*notes, *conversions, *_scaled(reduction)], "pillow", reduction)


def _scaled(reduction: int) -> list[str]:
    return [f"decoded at 1/{reduction} of its size"] if reduction > 1 else []


def _decode_jpeg(
    data: bytes, header: Header, frame: JpegFrame, notes: list[str], reuse: bool, reduction: int
) -> Decoded:
    """Raises ValueError with libjpeg's words."""
    pixels = _turbo(data if frame.complete else data + _END_MARKER, frame, notes, reuse, reduction)
    if frame.components != 3:
        notes.append(f"{frame.colour} to RGB")
    if frame.components == 4:
        pixels = cmyk_to_rgb(pixels)
    return Decoded(pixels, header, notes + _scaled(reduction), "libjpeg-turbo", reduction)


def notes_of(header: Header) -> list[str]:
    """What is to be said of a JPEG that another decoder than these decodes; see `Decoded.conversions`."""
    assert header.jpeg is not None
    notes = _notes(header) + _jpeg_notes(header.jpeg)
    if header.jpeg.components != 3:
        notes.append(f"{header.jpeg.colour} to RGB")
    return notes


def _jpeg_notes(frame: JpegFrame) -> list[str]:
    notes = []
    if not frame.complete:
        notes.append("end marker missing")
    if frame.trailing_bytes:
        notes.append(f"{frame.trailing_bytes} bytes after the end ignored")
    if not frame.all_sent:
        notes.append("coefficients that the file leaves out taken as zero")
    return notes


def _turbo(data: bytes, frame: JpegFrame, notes: list[str], reuse: bool, reduction: int) -> Pixels:
    """uint8 [height, width, 3], or [height, width, 4] for CMYK and YCCK. Raises ValueError with libjpeg's words."""
    decoder = _Turbo.of(frame, reuse, reduction)
    try:
        return decoder.decode(data, strict=True)
    except ValueError as error:
        if not _HARMLESS.search(str(error)):
            raise
        notes.append(_short(str(error)))
    return _turbo_tidied(tidy_header(data, frame), decoder, may_warn=frame.complete)


def _turbo_tidied(data: bytes, decoder: "_Turbo", *, may_warn: bool) -> Pixels:
    try:
        return decoder.decode(data, strict=True)
    except ValueError as error:
        # libjpeg tells of its first warning only: without an end marker, a second could be that data is missing.
        if not _HARMLESS.search(str(error)) or not may_warn:
            raise
    return decoder.decode(data, strict=False)


class _Turbo(NamedTuple):
    """How libjpeg-turbo is asked for an image, again and again if need be."""

    colour_space: str
    height: int
    width: int
    reduction: int
    buffer: Pixels | None

    @classmethod
    def of(cls, frame: JpegFrame, reuse: bool, reduction: int) -> Self:
        colour_space = "CMYK" if frame.components == 4 else "RGB"
        height, width = -(-frame.height // reduction), -(-frame.width // reduction)
        buffer = _buffer(height * width * len(colour_space)) if reuse else None
        return cls(colour_space, height, width, reduction, buffer)

    def decode(self, data: bytes, *, strict: bool) -> Pixels:
        if self.reduction == 1:
            whole: Pixels = simplejpeg.decode_jpeg(data, self.colour_space, buffer=self.buffer, strict=strict)
            return whole
        # No smaller than this and reduced by no less is one factor only.
        size = {"min_height": self.height, "min_width": self.width, "min_factor": self.reduction}
        pixels: Pixels = simplejpeg.decode_jpeg(data, self.colour_space, buffer=self.buffer, strict=strict, **size)
        assert pixels.shape[:2] == (self.height, self.width)
        return pixels


def _buffer(size: int) -> Pixels | None:
    """uint8 [size or more] of this thread; None when it would be too large to keep."""
    if size > SCRATCH_BYTES:
        return None
    buffer: Pixels | None = getattr(_scratch, "buffer", None)
    if buffer is None or buffer.size < size:
        buffer = _scratch.buffer = np.empty(size, np.uint8)
    return buffer


def _short(message: str) -> str:
    return message.removeprefix("Corrupt JPEG data: ").removeprefix("Warning: ")


def _jpeg_fault(message: str) -> CorruptImage:
    if _CUT.search(message):
        return CorruptImage(f"truncated JPEG: image data is missing ({_short(message)})")
    return CorruptImage(f"damaged JPEG: {_short(message)}")
