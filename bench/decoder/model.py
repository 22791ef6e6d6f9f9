"""A decoder-only transformer with random weights: pace does not depend on what they say.

The sizes and layers are those of small Llama-like models: RMSNorm before each half of a block, rotary positions, query
heads that share key-value heads in groups, a gated feed-forward, and one matrix for the embedding and the output.

Dimensions in comments:
    B   sequences               H   query heads
    T   tokens fed at once      G   key-value heads
    L   tokens seen so far      D   numbers in a head
    W   width of the model      V   vocabulary
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

_SEED = 20240
# Small beside what the layers add: else a greedy text repeats one token, and comparing texts proves nothing.
_EMBEDDING_STD = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the model; the defaults make 135 M parameters.

    Attributes:
        context: positions that there are rotations for, and room for in a static cache.
    """

    layers: int = 30
    width: int = 576
    heads: int = 9
    kv_heads: int = 3
    feed_forward: int = 1536
    vocabulary: int = 49_152
    context: int = 256
    rope_base: float = 10_000.0

    @property
    def head(self) -> int:
        """Numbers in a head."""
        return self.width // self.heads


class LayerCache(Protocol):
    """Keys and values of the tokens that one layer has seen."""

    def update(self, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Add [B, G, T, D] of the tokens at `positions` [T]; all there are, [B, G, L, D]."""
        ...


class GrowingCache:
    """A new, longer tensor for each token, as `torch.cat` gives it."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def update(self, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerCache`; L grows."""
        if self._keys is not None and self._values is not None:
            keys = torch.cat((self._keys, keys), dim=2)
            values = torch.cat((self._values, values), dim=2)
        self._keys, self._values = keys, values
        return keys, values


class StaticCache:
    """Room for the whole context from the start: one shape and one address for all steps."""

    def __init__(self, batch: int, sizes: Sizes, like: Tensor) -> None:
        shape = batch, sizes.kv_heads, sizes.context, sizes.head
        self.keys = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)
        for tensor in (self.keys, self.values):
            # Else reduce-overhead captures nothing: a graph that writes into its inputs must know that they stay.
            torch._dynamo.mark_static_address(tensor, guard=False)

    def update(self, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See `LayerCache`; L is the context. What was not written yet is masked by the caller."""
        self.keys.index_copy_(2, positions, keys)
        self.values.index_copy_(2, positions, values)
        return self.keys, self.values


class RMSNorm(nn.Module):
    """Scales the last dimension to a root mean square of one, then by learned weights."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., W] to the same; the mean is taken in float32."""
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).to(hidden.dtype) * self.weight


class Attention(nn.Module):
    """Each token looks at itself and at those before it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = sizes.heads, sizes.kv_heads, sizes.head
        self.inputs = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.kv_heads) * sizes.head, bias=False)
        self.output = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, hidden: Tensor, rotation: Tensor, bias: Tensor, positions: Tensor, cache: LayerCache) -> Tensor:
        """[B, T, W] to the same. `rotation` [2, T, D] is cosine and sine, `bias` [T, L] is 0 or -inf."""
        batch, length, _ = hidden.shape
        heads = self.inputs(hidden).view(batch, length, -1, self.head).transpose(1, 2)  # [B, H + 2 G, T, D]
        queries, keys, values = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        keys, values = cache.update(rotate(keys, rotation), values, positions)
        mixed = attend(rotate(queries, rotation), keys, values, bias)
        attended: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return attended


class FeedForward(nn.Module):
    """A gated layer: one half of the first product opens and closes the other."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.inputs = nn.Linear(sizes.width, 2 * sizes.feed_forward, bias=False)
        self.output = nn.Linear(sizes.feed_forward, sizes.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[B, T, W] to the same."""
        gate, value = self.inputs(hidden).chunk(2, dim=-1)
        fed: Tensor = self.output(functional.silu(gate) * value)
        return fed


class Block(nn.Module):
    """One of the layers. Its last addition is left to what follows, which can join it with its norm in one kernel."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = RMSNorm(sizes.width), RMSNorm(sizes.width)
        self.attention, self.feed = Attention(sizes), FeedForward(sizes)

    def forward(
        self,
        hidden: Tensor,
        change: Tensor,
        rotation: Tensor,
        bias: Tensor,
        positions: Tensor,
        cache: LayerCache,
    ) -> tuple[Tensor, Tensor]:
        """The stream [B, T, W] and what is still to be added to it; both again, one layer on."""
        hidden = hidden + change
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation, bias, positions, cache)
        return hidden, self.feed(self.feed_norm(hidden))


class Decoder(nn.Module):
    """Token numbers in, logits of the next token out."""

    rotations: Tensor  # [2, context, D]

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width)
        self.register_buffer("rotations", rotations(sizes))

    def forward(self, tokens: Tensor, positions: Tensor, caches: Sequence[LayerCache], seen: int) -> Tensor:
        """Logits [B, V] after the last of the tokens.

        Args:
            tokens: int64 [B, T].
            positions: int64 [T], where they stand in their sequences.
            caches: one a layer; they keep what is fed.
            seen: L, the length that the caches will have.
        """
        hidden = self.embedding(tokens)
        change = torch.zeros_like(hidden)
        rotation = self.rotations[:, positions]
        bias = causal_bias(positions, seen, hidden)
        for block, cache in zip(self.blocks, caches, strict=True):
            hidden, change = block(hidden, change, rotation, bias, positions, cache)
        last = self.norm((hidden + change)[:, -1])
        return functional.linear(last, self.embedding.weight)


def rotations(sizes: Sizes) -> Tensor:
    """Cosine and sine of each position's angles, [2, context, D]."""
    steps = torch.arange(0, sizes.head, 2) / sizes.head
    angles = torch.arange(sizes.context)[:, None] * sizes.rope_base**-steps
    return torch.stack((angles.cos(), angles.sin())).repeat(1, 1, 2)


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (d, d + D/2) of [B, ., T, D] by their positions' angles."""
    cosine, sine = rotation
    left, right = heads.chunk(2, dim=-1)
    turned: Tensor = heads * cosine + torch.cat((-right, left), dim=-1) * sine
    return turned


def causal_bias(positions: Tensor, seen: int, like: Tensor) -> Tensor:
    """0 where the token at a position [T] may look, -inf where it may not; [T, L]."""
    is_hidden = torch.arange(seen, device=positions.device) > positions[:, None]
    return torch.zeros(is_hidden.shape, dtype=like.dtype, device=like.device).masked_fill(is_hidden, -torch.inf)


def attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """[B, H, T, D] looks at [B, G, L, D]; [B, H, T, D].

    The query heads of a group become rows of one matrix product, so that nobody copies its keys for each of them.
    """
    batch, heads, length, head = queries.shape
    groups = keys.shape[1]
    grouped = queries.reshape(batch, groups, -1, head)  # [B, G, H/G * T, D]
    scores = (grouped @ keys.transpose(2, 3)) * head**-0.5
    scores = scores.view(batch, groups, heads // groups, length, -1) + bias
    shares = scores.softmax(dim=-1, dtype=torch.float32).to(values.dtype)
    mixed: Tensor = shares.flatten(2, 3) @ values
    return mixed.view(batch, heads, length, head)


def build(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Decoder:
    """The model; the same weights, but for rounding, on every device and in every dtype."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Decoder(sizes)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=sizes.width**-0.5)
        nn.init.normal_(model.embedding.weight, std=_EMBEDDING_STD)
    return model.eval().requires_grad_(False).to(device, dtype)


def prompts(batch: int, length: int, sizes: Sizes, device: torch.device) -> Tensor:
    """Random tokens, int64 [B, T], the same in every run and on every device."""
    generator = torch.Generator().manual_seed(_SEED)
    return torch.randint(sizes.vocabulary, (batch, length), generator=generator).to(device)
