"""The header of any supported image, held against the limits before a decoder allocates anything."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline import rasters
from pipeline.errors import CorruptImage, ImageTooLarge
from pipeline.jpeg import walk_jpeg
from pipeline.jpeg_frame import JpegFrame
from pipeline.sniff import sniff


@dataclass(frozen=True, slots=True)
class Limits:
    """What an image may have at most (bytes as sent, pixels as stored, frames or pages), and how it is taken.

    Attributes:
        max_decoded_bytes: memory that large images may take together while they are decoded.
        decode_timeout_s: how long a decode may take; 0 for any time.
        ignore_exif: whether images stay as they are stored, whatever their orientation.
        prescale: whether large images are decoded smaller where the resize leaves that much to spare.
    """

    max_bytes: int = 16 << 20
    max_pixels: int = 50_000_000
    max_frames: int = 1000
    max_decoded_bytes: int = 512 << 20
    decode_timeout_s: float = 0.0
    ignore_exif: bool = False
    prescale: bool = False


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of an image before it is decoded.

    Attributes:
        format: one of `pipeline.sniff.SUPPORTED`.
        width, height: in pixels, as stored: before the orientation is applied.
        orientation: EXIF orientation found, 1 to 8; 1 where there is none or it is broken.
        frames: frames of an animation or pages; the first is the one that is decoded.
        has_profile: whether a colour profile is embedded (it is ignored).
        jpeg: for JPEG files, what their segments say.
        ignore_exif: whether the image is taken as it is stored, whatever its orientation.
    """

    format: str
    width: int
    height: int
    orientation: int = 1
    frames: int = 1
    has_profile: bool = False
    jpeg: JpegFrame | None = None
    ignore_exif: bool = False

    @property
    def applied_orientation(self) -> int:
        """The EXIF orientation, 1 to 8, that the image is turned by."""
        return 1 if self.ignore_exif else self.orientation

    @property
    def pixels(self) -> int:
        """How many there are."""
        return self.width * self.height

    @property
    def upright_size(self) -> tuple[int, int]:
        """Width and height after the orientation is applied (5 to 8 swap them: EXIF 2.32, 4.6.4)."""
        return (self.height, self.width) if self.applied_orientation >= 5 else (self.width, self.height)


_OUTLINES: dict[str, Callable[[bytes, int], rasters.Outline]] = {
    "PNG": rasters.png_outline,
    "WEBP": rasters.webp_outline,
    "GIF": rasters.gif_outline,
    "BMP": rasters.bmp_outline,
    "TIFF": rasters.tiff_outline,
    "AVIF": rasters.avif_outline,
}


def read_header(data: bytes, limits: Limits) -> Header:
    """Reads the header of `data`, whatever its format, and checks it.

    Raises:
        NotAnImage, UnsupportedImage: as `pipeline.sniff.sniff` does.
        CorruptImage: the header is damaged or cut.
        ImageTooLarge: over one of `limits`.
    """
    if len(data) > limits.max_bytes:
        raise ImageTooLarge("the file", len(data), limits.max_bytes, "bytes", "--max-image-bytes")
    kind = sniff(data)
    header = _jpeg_header(data) if kind == "JPEG" else Header(kind, *_OUTLINES[kind](data, limits.max_frames))
    _check(header, limits)
    if kind == "TIFF":
        _check_pixels("a tile of the image", rasters.tiff_tile_pixels(data), limits)
    return replace(header, ignore_exif=True) if limits.ignore_exif else header


def _jpeg_header(data: bytes) -> Header:
    frame = walk_jpeg(data)
    return Header("JPEG", frame.width, frame.height, frame.orientation, 1, frame.has_profile, frame)


def _check(header: Header, limits: Limits) -> None:
    if not header.width or not header.height:
        raise CorruptImage(f"damaged {header.format}: its size is {header.width}x{header.height} pixels")
    _check_pixels(f"the image ({header.width}x{header.height})", header.width * header.height, limits)
    if header.frames > limits.max_frames:
        raise ImageTooLarge("the animation", header.frames, limits.max_frames, "frames", "--max-image-frames")


def _check_pixels(what: str, pixels: int, limits: Limits) -> None:
    if pixels > limits.max_pixels:
        raise ImageTooLarge(what, pixels, limits.max_pixels, "pixels", "--max-image-pixels")
