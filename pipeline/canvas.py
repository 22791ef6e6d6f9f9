"""From decoded pixels to a canvas slot: cut the window that the crop needs, turn it upright, and say where it lies.

The window is the part of the image that some pixel of the centre crop depends on: the crop mapped back to the source,
plus the filter's support. For Resize(256) + CenterCrop(224) that is 0.875 of the shorter side, whatever the aspect
ratio.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from pipeline.preprocess import Interpolation, Preprocess

# Half-width of each resampling filter, in output pixels when enlarging (Pillow, src/libImaging/Resample.c).
FILTER_SUPPORT: dict[Interpolation, float] = {"bilinear": 1.0, "bicubic": 2.0}

_PIL_FILTER: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}

# Above this many times the crop's area, resizing up to the crop's end costs more than Pillow's resize of a box.
_WHOLE_RESIZE_LIMIT = 4.0

# Pixels that a smaller decode must leave for each pixel of the resized image, along each axis.
_LEFT_FOR_RESIZE = 2.0


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis of the crop samples its source.

    Output pixel i is centred at `scale * (i + 0.5) + offset`, and pixels outside 0..extent do not exist.

    Attributes:
        scale: source pixels per output pixel.
        offset: where the crop's edge lies, in source pixels.
        extent: how many source pixels there are.
    """

    scale: float
    offset: float
    extent: int

    def window(self, size: int, support: float) -> tuple[int, int]:
        """First and one-past-last source pixel that `size` output pixels depend on."""
        reach = support * max(self.scale, 1.0)
        # Pillow takes pixels from int(centre - reach + 0.5) to int(centre + reach + 0.5); one more each side is free.
        first = math.floor(self.scale * 0.5 + self.offset - reach)
        last = math.ceil(self.scale * (size - 0.5) + self.offset + reach) + 1
        return max(first, 0), min(last, self.extent)

    def reduced(self, factor: int) -> "Axis":
        """The same sampling of a source decoded at 1/factor of its size, its last pixel perhaps a partial one."""
        return Axis(self.scale / factor, self.offset / factor, math.ceil(self.extent / factor))

    def cut(self, first: int, last: int) -> "Axis":
        """The same sampling of a source of which only first..last is left."""
        return Axis(self.scale, self.offset - first, last - first)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the crop samples a canvas, or an image."""

    y: Axis
    x: Axis

    def reduced(self, factor: int) -> "Geometry":
        """See `Axis.reduced`."""
        return Geometry(self.y.reduced(factor), self.x.reduced(factor))

    def row(self) -> tuple[float, ...]:
        """The six floats of the graph's geometry tensor: scale, offset, extent of y, then of x."""
        return (self.y.scale, self.y.offset, self.y.extent, self.x.scale, self.x.offset, self.x.extent)


def identity_row(size: int) -> tuple[float, ...]:
    """`Geometry.row` of a square canvas whose pixels are the output's: what padding rows carry."""
    axis = Axis(1.0, 0.0, size)
    return Geometry(axis, axis).row()


def identity_geometry(preprocess: Preprocess) -> Geometry:
    """The geometry of a canvas that holds the finished crop."""
    height, width = preprocess.crop
    return Geometry(Axis(1.0, 0.0, height), Axis(1.0, 0.0, width))


def crop_geometry(height: int, width: int, preprocess: Preprocess) -> Geometry:
    """How the crop samples an upright image of `height` x `width` pixels."""
    resized = preprocess.resized(height, width)
    top, left = preprocess.crop_origin(*resized)
    scale_y, scale_x = height / resized[0], width / resized[1]
    return Geometry(Axis(scale_y, top * scale_y, height), Axis(scale_x, left * scale_x, width))


class Reduced(NamedTuple):
    """Height and width of an upright image, in pixels, and the factor by which it was decoded smaller."""

    height: int
    width: int
    factor: int


class Window(NamedTuple):
    """The part of an upright image that its crop depends on.

    Attributes:
        whole, part: how the crop samples the image, and this part of it.
    """

    top: int
    bottom: int
    left: int
    right: int
    whole: Geometry
    part: Geometry

    @property
    def side(self) -> int:
        """Of the smallest square that it fits in."""
        return max(self.bottom - self.top, self.right - self.left)


@functools.lru_cache(maxsize=4096)
def find_window(height: int, width: int, preprocess: Preprocess, reduction: int = 1) -> Window:
    """The window of an upright image of `height` x `width` pixels that was decoded at 1/reduction of its size.

    Remembered, as most callers send images of few sizes.
    """
    whole = crop_geometry(height, width, preprocess).reduced(reduction)
    support = FILTER_SUPPORT[preprocess.interpolation]
    top, bottom = whole.y.window(preprocess.crop[0], support)
    left, right = whole.x.window(preprocess.crop[1], support)
    part = Geometry(whole.y.cut(top, bottom), whole.x.cut(left, right))
    return Window(top, bottom, left, right, whole, part)


def place(
    pixels: NDArray[np.uint8],
    orientation: int,
    preprocess: Preprocess,
    canvas: NDArray[np.uint8],
    reduced_from: Reduced | None = None,
) -> Geometry:
    """Write what the crop needs of an image into a canvas.

    Args:
        pixels: uint8 [H, W, 3], RGB, as stored in the file.
        orientation: EXIF orientation, 1 to 8, that turns it upright.
        canvas: uint8 [S, S, 3]; only the part that the geometry speaks of is written.
        reduced_from: what the pixels are a smaller decode of.

    Returns:
        How the crop samples the canvas. A window that does not fit is resized here, with the same filter, and then
        the geometry is the identity; so is it always where the canvas is no larger than the crop.
    """
    image = upright(pixels, orientation)  # a view, so nothing is turned but the window
    height, width, reduction = reduced_from or (*image.shape[:2], 1)
    window = find_window(height, width, preprocess, reduction)
    top, bottom, left, right, whole, part = window
    if resizes_in_graph(canvas.shape[0], preprocess) and window.side <= canvas.shape[0]:
        canvas[: bottom - top, : right - left] = image[top:bottom, left:right]
        return part
    crop_height, crop_width = preprocess.crop
    canvas[:crop_height, :crop_width] = resize_crop(image, whole, preprocess)
    return identity_geometry(preprocess)


def pick_reduction(height: int, width: int, orientation: int, preprocess: Preprocess) -> int:
    """By how much an image of `height` x `width` pixels, upright, may be decoded smaller: 1, 2, 4 or 8.

    What is left has at least `_LEFT_FOR_RESIZE` pixels for each of the resized image's, so that the resize still has
    the last word on what becomes of details.
    """
    resized_height, resized_width = preprocess.resized(height, width)
    scale = min(height / resized_height, width / resized_width)
    for factor in (8, 4, 2):
        # Where the image is mirrored, a partial last pixel would become the first and shift all others.
        is_whole = orientation == 1 or not (height % factor or width % factor)
        if scale >= _LEFT_FOR_RESIZE * factor and is_whole:
            return factor
    return 1


def resizes_in_graph(canvas: int, preprocess: Preprocess) -> bool:
    """Whether a canvas of this side leaves the resize to the graph: not if all it can hold is the finished crop."""
    return canvas > max(preprocess.crop)


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """A view of [H, W, 3] pixels as they are meant to be seen (EXIF 2.3, tag 0x0112)."""
    turned = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    flip_rows = orientation in (3, 4, 7, 8)
    flip_columns = orientation in (2, 3, 6, 7)
    return turned[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]


def resize_crop(image: NDArray[np.uint8], geometry: Geometry, preprocess: Preprocess) -> NDArray[np.uint8]:
    """The finished crop, uint8 [*crop, 3], of an upright image, resized on the CPU.

    torch's uint8 kernel is the reference's own and three times faster than Pillow's, but can only begin at the image's
    edge; Pillow's can take any box, so that an image of 1 x 4000 pixels costs no more than its crop.
    """
    height, width = preprocess.crop
    bottom, right = _crop_end(geometry.y, height), _crop_end(geometry.x, width)
    # Not for a squash: Pillow begins with the cheaper axis, and with two scales a cubic is then clipped elsewhere.
    if isinstance(preprocess.resize, int) and bottom * right > _WHOLE_RESIZE_LIMIT * height * width:
        return _resize_box(image, geometry, preprocess)
    resize = torch.ops.aten._upsample_bicubic2d_aa
    if preprocess.interpolation == "bilinear":
        resize = torch.ops.aten._upsample_bilinear2d_aa
    support = FILTER_SUPPORT[preprocess.interpolation]
    source = image[: geometry.y.window(height, support)[1], : geometry.x.window(width, support)[1]]
    # Writable, or torch warns. Copied if flipped: numpy calls a flipped axis of one pixel contiguous, torch does not.
    plain = source.copy() if min(source.strides) < 0 else np.require(source, requirements=["C", "W"])
    tensor = torch.from_numpy(plain).permute(2, 0, 1)[None]
    # With a scale given, the kernel samples at that scale whatever the two sizes say.
    resized = resize(tensor, [bottom, right], False, 1.0 / geometry.y.scale, 1.0 / geometry.x.scale)
    crop: NDArray[np.uint8] = resized[0, :, bottom - height :, right - width :].permute(1, 2, 0).numpy()
    return crop


def _crop_end(axis: Axis, size: int) -> int:
    """One past the last pixel of the crop, in the resized image."""
    return round(axis.offset / axis.scale) + size


def _resize_box(image: NDArray[np.uint8], geometry: Geometry, preprocess: Preprocess) -> NDArray[np.uint8]:
    height, width = preprocess.crop
    support = FILTER_SUPPORT[preprocess.interpolation]
    top, bottom = geometry.y.window(height, support)
    left, right = geometry.x.window(width, support)
    y, x = geometry.y.cut(top, bottom), geometry.x.cut(left, right)
    window = Image.fromarray(np.ascontiguousarray(image[top:bottom, left:right]))
    box = (x.offset, y.offset, min(x.offset + width * x.scale, x.extent), min(y.offset + height * y.scale, y.extent))
    return np.asarray(window.resize((width, height), _PIL_FILTER[preprocess.interpolation], box=box))
