"""Ways to write one token after the other, from the habits of a first draft to one graph launch a token.

All have the same words: `start(prompt)`, then `next()` for each further token.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from bench.decoder.model import Decoder, GrowingCache, StaticCache
from bench.decoder.picking import Pick

# As `Decoder.forward`.
Forward = Callable[[Tensor, Tensor, Sequence[StaticCache], int], Tensor]
# Before a capture: what libraries allocate or choose at a first call may not happen inside one.
_CALLS_BEFORE_CAPTURE = 3


class Writer(Protocol):
    """Writes B texts at once.

    Attributes:
        logits: [B, V], from which the newest tokens were picked.
    """

    logits: Tensor

    def start(self, prompt: Tensor) -> None:
        """Read int64 [B, T] and pick the first tokens."""
        ...

    def next(self) -> None:
        """Feed the newest tokens, pick others."""
        ...

    def feed(self, tokens: Tensor) -> None:
        """Replace the newest tokens by int64 [B, 1]."""
        ...

    def written(self) -> Tensor:
        """The tokens picked since the start, int64 [B, N]."""
        ...


class ReadingWriter:
    """A first draft: every token is read with `.item()`, kept in a list, and made a tensor again. One text only."""

    logits: Tensor

    def __init__(self, model: Decoder, pick: Pick) -> None:
        self._model = model
        self._pick = pick
        self._device = model.rotations.device

    def start(self, prompt: Tensor) -> None:
        """See `Writer`."""
        assert len(prompt) == 1, ".item() reads one token"
        self._caches = [GrowingCache() for _ in self._model.blocks]
        self._tokens: list[int] = []
        self._seen = 0
        self._read(prompt)

    def next(self) -> None:
        """See `Writer`."""
        self._read(torch.tensor([[self._tokens[-1]]], device=self._device))

    def feed(self, tokens: Tensor) -> None:
        """See `Writer`."""
        self._tokens[-1] = int(tokens.item())

    def written(self) -> Tensor:
        """See `Writer`."""
        return torch.tensor([self._tokens], device=self._device)

    def _read(self, tokens: Tensor) -> None:
        positions = torch.arange(self._seen, self._seen + tokens.shape[1], device=self._device)
        self._seen += tokens.shape[1]
        self.logits = self._model(tokens, positions, self._caches, self._seen)
        self._tokens.append(int(self._pick(self.logits).item()))


class GrowingWriter:
    """Tokens stay on the device; caches still grow."""

    logits: Tensor

    def __init__(self, model: Decoder, pick: Pick) -> None:
        self._model = model
        self._pick = pick

    def start(self, prompt: Tensor) -> None:
        """See `Writer`."""
        self._caches = [GrowingCache() for _ in self._model.blocks]
        self._tokens: list[Tensor] = []
        self._seen = 0
        self._read(prompt)

    def next(self) -> None:
        """See `Writer`."""
        self._read(self._tokens[-1])

    def feed(self, tokens: Tensor) -> None:
        """See `Writer`."""
        self._tokens[-1] = tokens

    def written(self) -> Tensor:
        """See `Writer`."""
        return torch.cat(self._tokens, dim=1)

    def _read(self, tokens: Tensor) -> None:
        positions = torch.arange(self._seen, self._seen + tokens.shape[1], device=tokens.device)
        self._seen += tokens.shape[1]
        self.logits = self._model(tokens, positions, self._caches, self._seen)
        self._tokens.append(self._pick(self.logits))


class StaticWriter:
    """Every step has the same shapes at the same addresses, and the host knows nothing that the device does not.

    Args:
        step: the model's forward for one token each, maybe compiled; the prompt is read by `model` itself.
    """

    logits: Tensor

    def __init__(self, model: Decoder, step: Forward, pick: Pick, batch: int) -> None:
        self._model, self._step, self._pick = model, step, pick
        self._context = model.sizes.context
        device = model.rotations.device
        self._caches = [StaticCache(batch, model.sizes, model.rotations) for _ in model.blocks]
        self._position = torch.zeros(1, dtype=torch.int64, device=device)  # of the newest tokens
        self._newest = torch.zeros(batch, 1, dtype=torch.int64, device=device)
        # One column more than there are positions: the last token is written and never fed.
        self._text = torch.zeros(batch, self._context + 1, dtype=torch.int64, device=device)

    def start(self, prompt: Tensor) -> None:
        """See `Writer`."""
        self._prompt_length = prompt.shape[1]
        positions = torch.arange(self._prompt_length, device=prompt.device)
        self.logits = self._model(prompt, positions, self._caches, self._context)
        self._position.fill_(self._prompt_length)
        self._write(self._pick(self.logits))

    def next(self) -> None:
        """See `Writer`."""
        self.logits = self._step(self._newest, self._position, self._caches, self._context)
        self._position.add_(1)
        self._write(self._pick(self.logits))

    def feed(self, tokens: Tensor) -> None:
        """See `Writer`."""
        self._write(tokens)

    def written(self) -> Tensor:
        """See `Writer`. Reads the position, so it waits for the device."""
        return self._text[:, self._prompt_length : int(self._position.item()) + 1].clone()

    def _write(self, tokens: Tensor) -> None:
        self._newest.copy_(tokens)
        self._text.index_copy_(1, self._position, tokens)


class CapturedWriter(StaticWriter):
    """The whole step, picking and bookkeeping included, as one CUDA graph that is captured once and replayed."""

    def __init__(self, model: Decoder, step: Forward, pick: Pick, batch: int) -> None:
        super().__init__(model, step, pick, batch)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_CALLS_BEFORE_CAPTURE):
                super().next()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            super().next()
        self._captured_logits = self.logits

    def next(self) -> None:
        """See `Writer`."""
        self._graph.replay()
        self.logits = self._captured_logits
