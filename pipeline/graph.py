"""The one function that a lane runs: canvases in, top-k out."""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx.experimental import optimization

from pipeline.canvas import identity_row, resizes_in_graph
from pipeline.model import Model
from pipeline.postprocess import top_scores
from pipeline.transforms import Transform

log = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Program:
    """What a lane runs, and how it came to be.

    Attributes:
        run: uint8 [B, 3, S, S] and float32 [B, 6] to float32 [B, K] scores and int32 [B, K] classes.
        execution: "compiled", or "eager" and why, in words for people.
        compile_s: seconds that compiling or loading took.
    """

    run: Forward
    execution: str
    compile_s: float = 0.0


class Graph(nn.Module):
    """Transform, forward and top-k of one model as one module."""

    def __init__(self, model: Model, canvas: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.transform = Transform(model.preprocess, resize=resizes_in_graph(canvas, model.preprocess), dtype=dtype)
        self.module = _fold_batch_norm(model.module).to(dtype).to(memory_format=torch.channels_last)
        self.activation = model.activation
        self.eval()

    def forward(self, canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
        """See `Program.run`."""
        return top_scores(self.module(self.transform(canvas, geometry)), self.activation)


def _fold_batch_norm(module: nn.Module) -> nn.Module:
    """A copy whose convolutions have taken their batch norm in; an unfolded one where it cannot be traced for that.

    Inductor's own folding (`freezing`) gives the same kernels but bypasses its cache, so that every start compiles anew
    (bench/LOG.md, 2026-11-29).
    """
    try:
        return optimization.fuse(module)
    except Exception as error:
        # Tracing runs the user's own forward with proxies, which may raise anything; only a little speed is lost.
        reason = (str(error) or type(error).__name__).splitlines()[0].partition(". ")[0]
        log.info("batch norm is not folded: %s", reason)
        return copy.deepcopy(module)


def example_inputs(batch: int, canvas: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch of grey canvases with an identity geometry, of the shapes and strides that lanes use."""
    pixels = torch.full((batch, canvas, canvas, 3), 127, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
    geometry = torch.tensor([identity_row(canvas)] * batch, dtype=torch.float32, device=device)
    return pixels, geometry
