"""From JPEG bytes to the model's input, as the legacy service does it: torchvision v2, image by image."""

import io
from collections.abc import Callable, Sequence

import simplejpeg
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from bench.ladder.rungs import Habits
from pipeline.preprocess import Preprocess

# float32 [n, 3, *crop] on the device, of n files.
Prepare = Callable[[Sequence[bytes]], Tensor]


def make_prepare(preprocess: Preprocess, habits: Habits, device: torch.device) -> Prepare:
    """The transforms of a rung."""
    pinned = device.type == "cuda" and not habits.syncs
    if habits.transforms_on_cpu:
        return _CpuTransforms(preprocess, device, augments=habits.augments, pinned=pinned)
    return _DeviceTransforms(preprocess, device, pinned=pinned)


def decode(file: bytes) -> Image.Image:
    """Pillow's decode, whole image, one core."""
    with Image.open(io.BytesIO(file)) as image:
        return image.convert("RGB")


class _CpuTransforms:
    """Everything in float32 on the CPU, then the copy."""

    def __init__(self, preprocess: Preprocess, device: torch.device, *, augments: bool, pinned: bool) -> None:
        # What a training recipe puts between resize and crop.
        training = [v2.RandomRotation(15), v2.RandomHorizontalFlip(), v2.ColorJitter(0.2, 0.2, 0.2, 0.1)]
        self._chain = v2.Compose(
            [
                _resize(preprocess),
                *(training if augments else []),
                v2.CenterCrop(list(preprocess.crop)),
                v2.PILToTensor(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(list(preprocess.mean), list(preprocess.std)),
            ]
        )
        self._device = device
        self._pinned = pinned

    def __call__(self, files: Sequence[bytes]) -> Tensor:
        images = torch.stack([self._chain(decode(file)) for file in files])
        return _to_device(images, self._device, pinned=self._pinned)


class _DeviceTransforms:
    """Decoded into a tensor, which goes to the device as bytes: a quarter of the size, before any arithmetic."""

    def __init__(self, preprocess: Preprocess, device: torch.device, *, pinned: bool) -> None:
        self._chain = v2.Compose([_resize(preprocess), v2.CenterCrop(list(preprocess.crop))])
        # v2.Normalize would make these anew for each image, by copies that the host waits for.
        self._mean = 255 * torch.tensor(preprocess.mean, device=device).view(3, 1, 1)
        self._std = 255 * torch.tensor(preprocess.std, device=device).view(3, 1, 1)
        self._device = device
        self._pinned = pinned

    def __call__(self, files: Sequence[bytes]) -> Tensor:
        levels = torch.stack([self._chain(self._upload(file)) for file in files])  # uint8 [n, 3, *crop]
        return (levels.float() - self._mean) / self._std

    def _upload(self, file: bytes) -> Tensor:
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(file)).permute(2, 0, 1)  # uint8 [3, H, W]
        return _to_device(pixels, self._device, pinned=self._pinned)


def _to_device(tensor: Tensor, device: torch.device, *, pinned: bool) -> Tensor:
    return tensor.pin_memory().to(device, non_blocking=True) if pinned else tensor.to(device)


def _resize(preprocess: Preprocess) -> v2.Resize:
    size = [preprocess.resize] if isinstance(preprocess.resize, int) else list(preprocess.resize)
    return v2.Resize(size, interpolation=InterpolationMode(preprocess.interpolation), antialias=True)
