"""The rungs: what each changes, and the published figures; and the writer that a rung stands for."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from bench.decoder.generate import (
    CapturedWriter,
    Forward,
    GrowingWriter,
    ReadingWriter,
    StaticWriter,
    Writer,
)
from bench.decoder.model import Decoder, StaticCache
from bench.decoder.picking import Pick, greedy, multinomial, race
from bench.rungs import pick


class Way(StrEnum):
    """How a step comes about."""

    READING = "cache by torch.cat, .item()"
    GROWING = "cache by torch.cat, tokens stay on the device"
    STATIC = "preallocated cache"
    REDUCE_OVERHEAD = "the same, torch.compile(mode='reduce-overhead')"
    CAPTURED = "the same, compiled and captured by hand"


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the climb; it keeps what the rungs before it have mended.

    Attributes:
        change: what is new.
        batch: texts at once.
        published: tokens per second that the case's author reports, of a similar model of 150 M parameters.
    """

    number: int
    name: str
    change: str
    dtype: torch.dtype
    pick: Pick
    way: Way
    batch: int = 1
    published: float | None = None

    @property
    def needs_gpu(self) -> bool:
        """It means nothing on a CPU, where it is left out."""
        return self.way in (Way.REDUCE_OVERHEAD, Way.CAPTURED)


_FP32, _FP16 = torch.float32, torch.float16

RUNGS = (
    Rung(0, "first draft", "eager fp32, torch.cat, multinomial, .item()", _FP32, multinomial, Way.READING, 1, 42),
    Rung(1, "half precision", "fp16", _FP16, multinomial, Way.READING),
    Rung(2, "greedy", "argmax instead of multinomial", _FP16, greedy, Way.READING),
    Rung(3, "no .item()", "sampling again, but the token stays on the GPU", _FP16, race, Way.GROWING),
    Rung(4, "static cache", "preallocated, every step of one shape", _FP16, race, Way.STATIC, 1, 210),
    Rung(
        5,
        "torch.compile",
        'the forward by torch.compile(mode="reduce-overhead")',
        _FP16,
        race,
        Way.REDUCE_OVERHEAD,
        1,
        900,
    ),
    Rung(6, "CUDA graph", "layers compiled, the whole step captured by hand, sampling too", _FP16, race, Way.CAPTURED),
    Rung(7, "batch 4", "four texts at once", _FP16, race, Way.CAPTURED, 4, 2_000),
    Rung(8, "batch 32", "thirty-two", _FP16, race, Way.CAPTURED, 32),
)


def pick_rungs(numbers: Sequence[int]) -> tuple[Rung, ...]:
    """The rungs with these numbers, from the bottom up.

    Raises:
        ValueError: there is no such rung.
    """
    return pick(RUNGS, numbers)


def compiled_step(way: Way, model: Decoder) -> Forward:
    """The model's forward as a way calls it, to be shared by writers that pick differently."""
    if way is Way.REDUCE_OVERHEAD:
        return _reduce_overhead(model)
    if way is Way.CAPTURED:
        return _compiled_by_block(model)
    return model


def make_writer(way: Way, model: Decoder, step: Forward, pick: Pick, batch: int) -> Writer:
    """See `compiled_step` for `step`."""
    if way is Way.READING:
        return ReadingWriter(model, pick)
    if way is Way.GROWING:
        return GrowingWriter(model, pick)
    kind = CapturedWriter if way is Way.CAPTURED else StaticWriter
    return kind(model, step, pick, batch)


def _reduce_overhead(model: Decoder) -> Forward:
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)

    def step(tokens: Tensor, positions: Tensor, caches: Sequence[StaticCache], seen: int) -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call, unused-ignore]
        logits: Tensor = compiled(tokens, positions, caches, seen)
        return logits

    return step


def _compiled_by_block(model: Decoder) -> Forward:
    """All blocks share one compilation, in seconds: the host's work between them is captured away anyway.

    With coordinate descent, inductor writes the products of a single row itself and joins them with their neighbours.
    """
    model = copy.deepcopy(model)
    for block in model.blocks:
        block.compile(fullgraph=True, dynamic=False, options={"coordinate_descent_tuning": True})
    return model
