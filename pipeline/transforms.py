"""Resize, crop and normalize as two batched matrix products, inside the graph.

An antialiased resize is separable and linear: `Wy @ pixels @ Wx^T`. The matrices are made here, in the graph, from six
floats an image, so one static graph serves every image size.
"""

import torch
from torch import Tensor, nn

from pipeline.canvas import FILTER_SUPPORT
from pipeline.preprocess import Interpolation, Preprocess

# Keys' cubic convolution parameter, as Pillow and torch's antialiased bicubic use it.
_CUBIC_A = -0.5


def triangle(x: Tensor) -> Tensor:
    """The bilinear filter."""
    return (1.0 - x.abs()).clamp(min=0.0)


def cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution with a = -0.5 (R. Keys, IEEE ASSP 29(6), 1981, eq. 15)."""
    x = x.abs()
    near = ((_CUBIC_A + 2.0) * x - (_CUBIC_A + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * _CUBIC_A
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, torch.zeros_like(x)))


def resample_matrix(axis: Tensor, out_size: int, in_size: int, interpolation: Interpolation) -> Tensor:
    """The matrix that resizes one axis.

    Args:
        axis: float32 [B, 3]: scale, offset and extent (see `canvas.Axis`).

    Returns:
        float32 [B, out_size, in_size]; each row sums to 1 and is 0 outside the extent.
    """
    scale, offset, extent = (column[:, None, None] for column in axis.unbind(1))
    out_index = torch.arange(out_size, dtype=torch.float32, device=axis.device)[None, :, None]
    in_index = torch.arange(in_size, dtype=torch.float32, device=axis.device)[None, None, :]
    centre = scale * (out_index + 0.5) + offset  # [B, out, 1]
    stretch = scale.clamp(min=1.0)
    reach = stretch * FILTER_SUPPORT[interpolation]
    # Pillow rounds the ends of the support to whole pixels (precompute_coeffs in Resample.c).
    inside = (
        (in_index >= (centre - reach + 0.5).floor()) & (in_index < (centre + reach + 0.5).floor()) & (in_index < extent)
    )
    weigh = triangle if interpolation == "bilinear" else cubic
    weights = weigh((in_index - centre + 0.5) / stretch) * inside
    return weights / weights.sum(dim=2, keepdim=True)


def resize_levels(canvas: Tensor, geometry: Tensor, preprocess: Preprocess, dtype: torch.dtype) -> Tensor:
    """Resize and crop a batch of canvases to grey levels.

    Args:
        canvas: uint8 [B, 3, S, S].
        geometry: float32 [B, 6], rows of `canvas.Geometry.row`.
        dtype: what the products are computed in.

    Returns:
        [B, 3, *crop] of `dtype`, whole numbers in 0..255.
    """
    height, width = preprocess.crop
    batch, channels, size, _ = canvas.shape
    wy = resample_matrix(geometry[:, :3], height, size, preprocess.interpolation).to(dtype)
    wx = resample_matrix(geometry[:, 3:], width, size, preprocess.interpolation).to(dtype)
    # In lines of [3, S]: then both products are plain ones, one matrix an image, and none is repeated for each channel.
    lines = canvas.permute(0, 2, 1, 3).to(dtype).reshape(batch, size * channels, size)
    rows = torch.bmm(lines, wx.transpose(1, 2)).view(batch, size, channels * width)
    if preprocess.interpolation == "bicubic":
        # A cubic overshoots, and Pillow and torchvision clip it after each pass, x first.
        rows = _to_levels(rows)
    # They round a bilinear twice too, by up to 1.0 in all; rounded once, by 0.5, no level is 2 off theirs.
    levels = _to_levels(torch.bmm(wy, rows))  # [B, height, 3 * width]
    return levels.view(batch, height, channels, width).permute(0, 2, 1, 3)


def _to_levels(x: Tensor) -> Tensor:
    # Halves go up, as in Pillow's and torch's fixed-point kernels.
    return (x + 0.5).floor().clamp(0.0, 255.0)


class Transform(nn.Module):
    """Canvas to the model's input, inside the graph.

    Args:
        resize: False where the canvas holds the finished crop, so that only the scale and the shift are left.
    """

    def __init__(self, preprocess: Preprocess, *, resize: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.preprocess = preprocess
        # bfloat16 has 8 bits of mantissa: too few for grey levels between 128 and 255.
        self.resize_dtype = torch.float16 if dtype == torch.bfloat16 else dtype
        self.resize = resize
        self.dtype = dtype
        mean, std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)
        # (x / 255 - mean) / std as one multiplication and one addition.
        self.gain: Tensor
        self.shift: Tensor
        self.register_buffer("gain", (1.0 / (255.0 * std)).view(3, 1, 1))
        self.register_buffer("shift", (-mean / std).view(3, 1, 1))

    def forward(self, canvas: Tensor, geometry: Tensor) -> Tensor:
        """uint8 [B, 3, S, S] and float32 [B, 6] to `dtype` [B, 3, *crop], channels last."""
        height, width = self.preprocess.crop
        if self.resize:
            levels = resize_levels(canvas, geometry, self.preprocess, self.resize_dtype)
        else:
            levels = canvas[:, :, :height, :width]
        normalized = levels.float() * self.gain + self.shift
        return normalized.to(self.dtype).contiguous(memory_format=torch.channels_last)
