"""A model small enough to be compiled in a test: a convolution with batch norm, and a few classes."""

import torch
from torch import nn

from pipeline.model import Model
from pipeline.preprocess import Preprocess

CLASSES = 10
PREPROCESS = Preprocess(resize=36, crop=(32, 32))
# A canvas that leaves the resize to the graph, and one that does not.
CANVAS, CROP_CANVAS = 48, 32


def layers() -> nn.Module:
    """As a user's factory would give them, with batch norm statistics that are not the initial ones."""
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    module.train()(torch.randn(16, 3, 32, 32) * 3 + 1)
    return module.eval().requires_grad_(False)


class BranchesOnPixels(nn.Module):
    """Cannot be exported, and not traced: which way it goes depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits if images.mean() > 0 else -logits


def model(module: nn.Module | None = None) -> Model:
    """The layers as a served model."""
    labels = tuple(f"class {index}" for index in range(CLASSES))
    return Model("tiny", "sha256:0", module or layers(), labels, PREPROCESS)
