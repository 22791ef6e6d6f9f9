"""What the answers are held against: torchvision v2 and the model in float32, on the CPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bench.ladder.answers import reference_top1
from bench.ladder.legacy_transforms import decode
from bench.mix import PHOTOGRAPHS, mix_images
from pipeline.model import Model, ModelError, load_model
from pipeline.reference import normalize, reference_levels

_SEED = 0
_CALIBRATED_WITH = 32
_BATCH = 8
# The logit of a file's own class, about, where that of others is 0.
_SHARPNESS = 10.0
# Against the mean square of the features: small enough to tell files apart, large enough for rounding not to matter.
_RIDGE = 0.001


@dataclass(frozen=True, slots=True)
class Reference:
    """The reference's best class of each file, and the weights that all are to use.

    Attributes:
        photographs: by name, the sample photographs' contents; `photograph_top1` in the same order.
        mix_top1: of the files of the mix.
        weights: "default", or the path of a state dict.
    """

    photographs: dict[str, bytes]
    photograph_top1: tuple[int, ...]
    mix_top1: tuple[int, ...]
    weights: str


def make_reference(model_name: str, weights: str, mix: str, folder: Path) -> Reference:
    """Compute it; random weights ("none") are written into the folder, so that all can load the same.

    Raises:
        ModelError: the model cannot be had.
    """
    files = mix_images(mix)
    torch.manual_seed(_SEED)
    model = load_model(model_name, weights=weights)
    photographs = {path.name: path.read_bytes() for path in sorted(PHOTOGRAPHS.glob("*.jpg"))}
    if weights == "none":
        calibrate(model, files[:_CALIBRATED_WITH])
        recognize(model, [*photographs.values(), *files])
        weights = str(folder / "random.pt")
        torch.save(model.module.state_dict(), weights)
    top1 = reference_top1(model, [*photographs.values(), *files])
    return Reference(photographs, tuple(top1[: len(photographs)]), tuple(top1[len(photographs) :]), weights)


@torch.inference_mode()
def calibrate(model: Model, files: Sequence[bytes]) -> None:
    """Give random weights the statistics of these files: else every image would get the same best class."""
    norms = [module for module in model.module.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for batch in _batches(model, files):
        model.module(batch)
    for norm in norms:
        norm.eval()


@torch.inference_mode()
def recognize(model: Model, files: Sequence[bytes]) -> None:
    """Give random weights a class for each file.

    What random weights say by themselves is so close a call that half precision decides it otherwise for one image in
    ten, and few classes ever win.

    Raises:
        ModelError: the model does not end in a linear layer with a class for each file.
    """
    last = next((module for module in reversed(list(model.module.modules())) if isinstance(module, nn.Linear)), None)
    if last is None or last.out_features < len(files):
        raise ModelError(f"{model.name} has no last layer with {len(files)} classes: give it weights")
    seen: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for batch in _batches(model, files):
        model.module(batch)
    hook.remove()
    features = torch.cat(seen)
    mean = features.mean(dim=0)
    apart = features - mean
    # Ridge regression from features to classes (https://en.wikipedia.org/wiki/Ridge_regression), in its dual form.
    gram = apart @ apart.T
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(len(files))
    weights = _SHARPNESS * torch.linalg.solve(gram + ridge, apart)
    last.weight.zero_()
    last.weight[: len(files)] = weights
    last.bias.fill_(-_SHARPNESS)
    last.bias[: len(files)] = -weights @ mean


def _batches(model: Model, files: Sequence[bytes]) -> Iterator[Tensor]:
    for start in range(0, len(files), _BATCH):
        pixels = [np.asarray(decode(file)) for file in files[start : start + _BATCH]]
        levels = [reference_levels(image, model.preprocess) for image in pixels]
        yield normalize(torch.stack(levels), model.preprocess)
