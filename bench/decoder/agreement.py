"""Does a rung still compute the same? Its logits and its greedy text, against eager fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.decoder.generate import Writer

# How far a logit may be off, and the top-two margin from which on both must pick the same token. The random model's
# logits have a standard deviation of 2.4, and their margin a median of 0.5.
TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.12}


@dataclass(frozen=True, slots=True)
class Agreement:
    """With the reference, over all texts and steps.

    Attributes:
        tolerance: for logits and for margins.
        logits_diff: largest difference of a logit while both are fed the reference's tokens.
        forced: tokens compared while both are fed the reference's: all with a margin of at least the tolerance.
        free: compared while the candidate is fed its own: of each text those before the first smaller margin.
        wrong: of both, those that differ.
    """

    tolerance: float
    logits_diff: float
    forced: int
    free: int
    wrong: int

    @property
    def is_good(self) -> bool:
        """Logits within the tolerance, tokens the same."""
        return self.logits_diff <= self.tolerance and self.wrong == 0


def compare(reference: Writer, candidate: Writer, prompt: Tensor, steps: int, dtype: torch.dtype) -> Agreement:
    """Let both write `steps` tokens, first hand in hand, then the candidate alone. Both pick greedily.

    Args:
        prompt: int64 [B, T].
        dtype: the candidate's.
    """
    tolerance = TOLERANCE[dtype]
    diffs, margins, picks = _hand_in_hand(reference, candidate, prompt, steps)
    is_firm = margins >= tolerance
    is_before = is_firm.int().cumprod(dim=1).bool()
    text = reference.written()
    forced_wrong = (picks != text) & is_firm
    free_wrong = (_write(candidate, prompt, steps) != text) & is_before
    return Agreement(
        tolerance,
        logits_diff=diffs,
        forced=int(is_firm.sum()),
        free=int(is_before.sum()),
        wrong=int(forced_wrong.sum() + free_wrong.sum()),
    )


def _hand_in_hand(reference: Writer, candidate: Writer, prompt: Tensor, steps: int) -> tuple[float, Tensor, Tensor]:
    """Largest difference of logits; the reference's margins and the candidate's picks, [B, steps]."""
    reference.start(prompt)
    candidate.start(prompt)
    diff, margins, picks = 0.0, [], []
    for step in range(steps):
        if step:
            reference.next()
            candidate.next()
        diff = max(diff, float((candidate.logits.float() - reference.logits).abs().max()))
        margins.append(_margin(reference.logits))
        picks.append(candidate.written()[:, -1])
        candidate.feed(reference.written()[:, -1:])
    return diff, torch.stack(margins, dim=1), torch.stack(picks, dim=1)


def _write(writer: Writer, prompt: Tensor, steps: int) -> Tensor:
    writer.start(prompt)
    for _ in range(steps - 1):
        writer.next()
    return writer.written()


def _margin(logits: Tensor) -> Tensor:
    """[B, V] to [B]."""
    best, second = logits.topk(2, dim=-1).values.unbind(dim=-1)
    return best - second
