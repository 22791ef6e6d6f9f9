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

    def cut(self, first: int, last: int) -> "Axis":
        """The same sampling of a source of which only first..last is left."""
        return Axis(self.scale, self.offset - first, last - first)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the crop samples a canvas, or an image."""

    y: Axis
    x: Axis

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


class Window(NamedTuple):
    """The part of an upright image that its crop depends on, and how the crop samples that part."""

    top: int
    bottom: int
    left: int
    right: int
    geometry: Geometry

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def side(self) -> int:
        """Of the smallest square that it fits in."""
        return max(self.height, self.width)


@functools.lru_cache(maxsize=4096)
def find_window(height: int, width: int, preprocess: Preprocess) -> Window:
    """The window of an upright image of `height` x `width` pixels. Remembered: most callers send few sizes."""
    geometry = crop_geometry(height, width, preprocess)
    support = FILTER_SUPPORT[preprocess.interpolation]
    top, bottom = geometry.y.window(preprocess.crop[0], support)
    left, right = geometry.x.window(preprocess.crop[1], support)
    return Window(top, bottom, left, right, Geometry(geometry.y.cut(top, bottom), geometry.x.cut(left, right)))


def place(pixels: NDArray[np.uint8], orientation: int, preprocess: Preprocess, canvas: NDArray[np.uint8]) -> Geometry:
    """Write what the crop needs of an image into a canvas.

    Args:
        pixels: uint8 [H, W, 3], RGB, as stored in the file.
        orientation: EXIF orientation, 1 to 8, that turns it upright.
        canvas: uint8 [S, S, 3]; only the part that the geometry speaks of is written.

    Returns:
        How the crop samples the canvas. A window that does not fit is resized here, with the same filter, and then
        the geometry is the identity; so is it always where the canvas is no larger than the crop.
    """
    image = upright(pixels, orientation)  # a view, so nothing is turned but the window
    window = find_window(image.shape[0], image.shape[1], preprocess)
    if resizes_in_graph(canvas.shape[0], preprocess) and window.side <= canvas.shape[0]:
        canvas[: window.height, : window.width] = image[window.top : window.bottom, window.left : window.right]
        return window.geometry
    height, width = preprocess.crop
    canvas[:height, :width] = resize_crop(image, crop_geometry(image.shape[0], image.shape[1], preprocess), preprocess)
    return identity_geometry(preprocess)


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
    # Writable, or torch warns.
    tensor = torch.from_numpy(np.require(source, requirements=["C", "W"])).permute(2, 0, 1)[None]
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
