"""What every peer serves: decode, torchvision v2's transform, and one compiled forward with the best five classes.

Written as a careful user would, with nothing of this project's server in it. Pixels stay uint8 until the compiled
part, which scales, normalizes, runs the model and picks. On a CPU that part takes any batch size, and each image is
resized by torch's own uint8 kernel. On a GPU the images are resized there, the model is fp16 and channels-last, and
each batch is padded to its fixed size and replayed as a CUDA graph (`mode="reduce-overhead"`,
https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html). Batch norm is folded into the convolutions,
as https://docs.pytorch.org/tutorials/intermediate/fx_conv_bn_fuser.html does: inductor's `freezing` makes the same
kernels, but makes them anew at every start.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import simplejpeg
import torch
from torch import Tensor, nn
from torch.fx.experimental import optimization
from torchvision.transforms import InterpolationMode, v2

from bench.peers.setup import Setup
from pipeline.model import Model, load_model
from pipeline.preprocess import Preprocess

TOP_K = 5
Answer = dict[str, list[Any]]
_Run = Callable[[Tensor], tuple[Tensor, Tensor]]


class Decoder:
    """From a JPEG to uint8 on the CPU: [3, *crop], or [3, H, W] where the GPU resizes."""

    def __init__(self, setup: Setup, model: Model | None = None) -> None:
        model = model or load_model(setup.model, weights="none")
        self._transform = None if setup.resizes_on_gpu else make_transform(model.preprocess)
        self._threads = ThreadPoolExecutor(setup.layout.get("decode_threads", 1), thread_name_prefix="decode")

    def decode(self, file: bytes) -> Tensor:
        """One image."""
        pixels = torch.from_numpy(simplejpeg.decode_jpeg(file)).permute(2, 0, 1)
        return self._transform(pixels) if self._transform else pixels

    def decode_all(self, files: Sequence[bytes]) -> list[Tensor]:
        """Several, on as many threads as the layout says."""
        return list(self._threads.map(self.decode, files))


class Classifier:
    """The model, compiled and warm.

    On a GPU all calls must come from the thread that made it: CUDA graphs are kept by thread.

    Attributes:
        decoder: makes what `classify` takes.
    """

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.layout.get("torch_threads", 1))
        model = load_model(setup.model, weights=setup.weights)
        self.decoder = Decoder(setup, model)
        self._device = torch.device(setup.device)
        self._crop = model.preprocess.crop
        self._rows = setup.batch_size if setup.on_gpu else 0
        self._resize = make_transform(model.preprocess) if setup.resizes_on_gpu else None
        graph = _Graph(model, torch.float16 if setup.on_gpu else torch.float32)
        graph = graph.to(self._device).to(memory_format=torch.channels_last).eval()
        self._run: _Run = torch.compile(
            graph, dynamic=not setup.on_gpu, mode="reduce-overhead" if setup.on_gpu else None
        )
        self._warm_up(setup.batch_size)

    @torch.inference_mode()
    def classify(self, images: Sequence[Tensor]) -> list[Answer]:
        """The best classes of each image of a batch."""
        scores, indices = self._forward(self._batch(images))
        rows = zip(scores[: len(images)].tolist(), indices[: len(images)].tolist(), strict=True)
        return [{"indices": best, "scores": probable} for probable, best in rows]

    def _batch(self, images: Sequence[Tensor]) -> Tensor:
        """uint8 [n, 3, *crop] on the device. On a GPU n is the batch size, and rows behind the images mean nothing."""
        if not self._rows:
            return torch.stack(list(images))
        levels = torch.zeros(self._rows, 3, *self._crop, dtype=torch.uint8, device=self._device)
        for row, image in zip(levels, images, strict=False):
            pixels = image.pin_memory().to(self._device, non_blocking=True)
            row.copy_(self._resize(pixels) if self._resize else pixels)
        return levels

    def _forward(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        scores, indices = self._run(levels)
        return scores.cpu(), indices.cpu()

    @torch.inference_mode()
    def _warm_up(self, largest: int) -> None:
        """Every size once, since dynamic shapes leave 1 out; on a GPU one size, until its graph has been captured."""
        for size in range(largest, 0, -1):
            self._forward(torch.zeros(self._rows or size, 3, *self._crop, dtype=torch.uint8, device=self._device))


class OwnedClassifier:
    """A `Classifier` with a thread of its own, for servers that call from whichever thread is free."""

    def __init__(self, setup: Setup) -> None:
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="classifier")
        self._classifier = self._owner.submit(Classifier, setup).result()

    @property
    def decoder(self) -> Decoder:
        """See `Classifier`; may be used by any thread."""
        return self._classifier.decoder

    def submit(self, images: Sequence[Tensor]) -> Future[list[Answer]]:
        """`Classifier.classify` on the owner."""
        return self._owner.submit(self._classifier.classify, images)


class _Graph(nn.Module):
    """uint8 [n, 3, H, W] to the best probabilities, float32 [n, TOP_K], and their classes, int64 [n, TOP_K]."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = optimization.fuse(model.module).to(dtype)
        self._dtype = dtype
        self.register_buffer("mean", 255 * torch.tensor(model.preprocess.mean).view(3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(model.preprocess.std).view(3, 1, 1))

    def forward(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        pixels = ((levels.float() - self.mean) / self.std).to(self._dtype)
        logits = self.module(pixels.contiguous(memory_format=torch.channels_last))
        best: tuple[Tensor, Tensor] = logits.float().softmax(dim=1).topk(TOP_K)
        return best


def make_transform(preprocess: Preprocess) -> v2.Compose:
    """Resize and crop of uint8, as the model's weights declare."""
    size = [preprocess.resize] if isinstance(preprocess.resize, int) else list(preprocess.resize)
    mode = InterpolationMode(preprocess.interpolation)
    return v2.Compose([v2.Resize(size, interpolation=mode, antialias=True), v2.CenterCrop(list(preprocess.crop))])


if __name__ == "__main__":
    Classifier(Setup.from_environment())
