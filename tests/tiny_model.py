"""Models small enough to be compiled or served in a test.

Servers import this module, so that it holds nothing that takes long to import.
"""

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


class Tiny(nn.Module):
    """For images of any size: fifty classes, the same random weights in every process."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 50)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


def model(module: nn.Module | None = None) -> Model:
    """The layers as a served model."""
    labels = tuple(f"class {index}" for index in range(CLASSES))
    return Model("tiny", "sha256:0", module or layers(), labels, PREPROCESS)
