"""The next token from logits. None of these waits for the device; what is done with the token may."""

from collections.abc import Callable

import torch
from torch import Tensor

# [B, V] to int64 [B, 1].
Pick = Callable[[Tensor], Tensor]


def greedy(logits: Tensor) -> Tensor:
    """The likeliest."""
    return logits.argmax(dim=-1, keepdim=True)


def multinomial(logits: Tensor) -> Tensor:
    """Drawn with the softmax's probabilities, in the usual words."""
    return torch.multinomial(logits.float().softmax(dim=-1), num_samples=1)


def race(logits: Tensor) -> Tensor:
    """Drawn with the same probabilities in one argmax (the Gumbel trick): no sum, no checks, nothing but three kernels.

    Of exponential clocks with rates exp(logit) each rings first with its softmax probability.
    """
    clocks = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return (logits - clocks.log()).argmax(dim=-1, keepdim=True)
