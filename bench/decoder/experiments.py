"""The author's five experiments on the first draft, one change each and nothing kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.decoder.measure import Bench
from bench.decoder.model import Decoder
from bench.decoder.picking import greedy, multinomial
from bench.decoder.rungs import Way, make_writer
from bench.doctor.subject import ms_per_batch

LETTERS = "ABCDE"
_FP32, _FP16 = torch.float32, torch.float16


@dataclass(frozen=True, slots=True)
class Trial:
    """One experiment; "-" is the first draft itself.

    Attributes:
        tokens_s: of one text; None if it failed, and `note` says why.
        gain: over `against`.
    """

    letter: str
    change: str
    against: str = "-"
    tokens_s: float | None = None
    gain: float | None = None
    note: str = ""


class NoCache:
    """For a forward over a whole prompt, after which nothing comes."""

    def update(self, keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """See `bench.decoder.model.LayerCache`."""
        return keys, values


def run_trials(bench: Bench, letters: str = LETTERS) -> Iterator[Trial]:
    """Those with these letters, as they are done, after what they are set against. E is left out on a CPU."""
    paces: dict[str, float] = {}
    wanted = {*letters, *("-" if letters else ""), *("C" if "E" in letters else "")}
    for trial, measure in _trials(bench):
        if trial.letter not in wanted:
            continue
        try:
            paces[trial.letter] = 1e3 / measure()
        except Exception as error:  # as for the rungs: a failed one costs nothing but itself
            yield Trial(trial.letter, trial.change, trial.against, note=_first_line(error))
            continue
        pace, base = paces[trial.letter], paces.get(trial.against)
        yield Trial(trial.letter, trial.change, trial.against, pace, pace / base if base else None, trial.note)


def _trials(bench: Bench) -> Iterator[tuple[Trial, Callable[[], float]]]:
    draft = bench.models[_FP32]
    prompt = bench.prompt(1)

    def writing(way: Way, dtype: torch.dtype, pick: Callable[[Tensor], Tensor]) -> Callable[[], float]:
        model = bench.models[dtype]
        return lambda: bench.step_ms(make_writer(way, model, model, pick, 1), prompt)

    yield Trial("-", "the first draft"), writing(Way.READING, _FP32, multinomial)
    yield Trial("A", "fp32 -> fp16"), writing(Way.READING, _FP16, multinomial)
    yield Trial("B", "greedy instead of multinomial"), writing(Way.READING, _FP32, greedy)
    yield (
        Trial("C", "forward only, a fixed prompt", note=f"forwards of {prompt.shape[1]} tokens, one token for each"),
        lambda: ms_per_batch(forward_only(draft, len(draft.blocks), prompt), bench.plan.seconds),
    )
    yield Trial("D", "no .item()"), writing(Way.GROWING, _FP32, multinomial)
    if prompt.is_cuda:
        note = "on C, since a cache by torch.cat has a new shape at every token"
        yield (
            Trial("E", 'torch.compile(mode="reduce-overhead")', "C", note=note),
            lambda: ms_per_batch(_compiled(draft, prompt), bench.plan.seconds),
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def forward_only(forward: Callable[..., Tensor], layers: int, prompt: Tensor) -> Callable[[], Tensor]:
    """The forward over the prompt, time and again."""
    length = prompt.shape[1]
    positions = torch.arange(length, device=prompt.device)
    caches = [NoCache()] * layers
    return lambda: forward(prompt, positions, caches, length)


def _compiled(model: Decoder, prompt: Tensor) -> Callable[[], Tensor]:
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)
    run = forward_only(compiled, len(model.blocks), prompt)

    def step() -> Tensor:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call, unused-ignore]
        return run()

    return step
