"""One rung: does it compute the same, how fast is it, what did the device do meanwhile, and what says the doctor."""

import time
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from bench.decoder.agreement import Agreement, compare
from bench.decoder.floor import Ceilings, step_floor
from bench.decoder.generate import GrowingWriter, Writer
from bench.decoder.model import Decoder, prompts
from bench.decoder.picking import greedy
from bench.decoder.rungs import Rung, compiled_step, make_writer
from bench.doctor.diagnose import diagnose
from bench.doctor.evidence import Evidence, Roofline
from bench.doctor.subject import wait
from bench.trace import TraceSummary, profile_batches

# A token of the first rung is a thousand kernels: a profile of many takes longer to read than to make.
PROFILED_STEPS = 16
_STEPS_BEFORE_PROFILE = 3
STEPS_UNDER_PROFILE = _STEPS_BEFORE_PROFILE + 2 * PROFILED_STEPS


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything is.

    Attributes:
        prompt: tokens read before the first is written.
        tokens: written for a measurement, one a step.
        checked: tokens of each text that are compared with the reference.
        seconds: texts are written until these have passed, two at least.
    """

    prompt: int
    tokens: int
    checked: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """What is reported of a rung. Of one step, which writes a token for each text; None where there is no GPU.

    Attributes:
        tokens_s: of all texts together.
        floor_ms: see `bench.decoder.floor`.
        settle_s: until the first two tokens were there: compilation and capture.
        gpu_busy: kernel time over wall time, 0 to 1.
        launches: kernel and graph launches by the host.
        verdict, evidence: the doctor's.
    """

    number: int
    name: str
    dtype: str
    batch: int
    tokens_s: float
    published_tokens_s: float | None
    step_ms: float
    floor_ms: float
    settle_s: float
    agreement: Agreement
    gpu_busy: float | None = None
    kernel_ms: float | None = None
    kernels: float | None = None
    launches: float | None = None
    short_kernels: float | None = None
    syncs: float | None = None
    verdict: str | None = None
    evidence: tuple[str, ...] = ()


class Bench:
    """The models and the ceilings, shared by all rungs.

    Args:
        models: by dtype, on one device.
    """

    def __init__(self, models: dict[torch.dtype, Decoder], ceilings: Ceilings, plan: Plan) -> None:
        self.models = models
        self.plan = plan
        self.ceilings = ceilings
        self._sizes = models[torch.float32].sizes
        self._device = models[torch.float32].rotations.device

    def prompt(self, batch: int) -> Tensor:
        """What every rung reads first, int64 [B, T]."""
        return prompts(batch, self.plan.prompt, self._sizes, self._device)

    def row(self, rung: Rung) -> Row:
        """Check, then measure."""
        model, prompt = self.models[rung.dtype], self.prompt(rung.batch)
        started = time.perf_counter()
        step = compiled_step(rung.way, model)
        checked = make_writer(rung.way, model, step, greedy, rung.batch)
        _settle(checked, prompt)
        settle_s = time.perf_counter() - started
        reference = GrowingWriter(self.models[torch.float32], greedy)
        agreement = compare(reference, checked, prompt, self.plan.checked, rung.dtype)
        writer = make_writer(rung.way, model, step, rung.pick, rung.batch)
        step_ms = self.step_ms(writer, prompt)
        trace = _profile(writer, prompt, step_ms) if self._device.type == "cuda" else None
        floor = self._floor(rung)
        return _row(rung, step_ms, settle_s, agreement, floor, trace)

    def step_ms(self, writer: Writer, prompt: Tensor) -> float:
        """Median over texts of the mean wall milliseconds of a step; reading the prompt is left out."""
        _settle(writer, prompt)
        texts: list[float] = []
        while len(texts) < 2 or sum(texts) < self.plan.seconds * 1e3 / self.plan.tokens:
            texts.append(_text_ms(writer, prompt, self.plan.tokens))
        return median(texts)

    def _floor(self, rung: Rung) -> Roofline:
        seen = self.plan.prompt + self.plan.tokens / 2
        return step_floor(self._sizes, rung.dtype, rung.batch, seen, self.ceilings)


def _text_ms(writer: Writer, prompt: Tensor, tokens: int) -> float:
    writer.start(prompt)
    wait()
    started = time.perf_counter()
    for _ in range(tokens):
        writer.next()
    wait()
    return (time.perf_counter() - started) * 1e3 / tokens


def _settle(writer: Writer, prompt: Tensor) -> None:
    writer.start(prompt)
    # A graph of reduce-overhead is recorded at the second call and replayed from the third.
    for _ in range(3):
        writer.next()
    wait()


def _profile(writer: Writer, prompt: Tensor, step_ms: float) -> TraceSummary:
    writer.start(prompt)
    wait()
    return profile_batches(writer.next, PROFILED_STEPS, _STEPS_BEFORE_PROFILE).at_wall(step_ms)


def _row(
    rung: Rung, step_ms: float, settle_s: float, agreement: Agreement, floor: Roofline, trace: TraceSummary | None
) -> Row:
    plain = Row(
        rung.number,
        rung.name,
        str(rung.dtype).removeprefix("torch."),
        rung.batch,
        tokens_s=rung.batch * 1e3 / step_ms,
        published_tokens_s=rung.published,
        step_ms=step_ms,
        floor_ms=floor.floor_ms,
        settle_s=settle_s,
        agreement=agreement,
    )
    return with_profile(plain, trace, floor) if trace else plain


def with_profile(row: Row, trace: TraceSummary, floor: Roofline) -> Row:
    """The row with what the device did, and what the doctor makes of it."""
    verdict = diagnose(Evidence(trace=trace, roofline=floor))
    return replace(
        row,
        gpu_busy=trace.gpu_busy,
        kernel_ms=trace.kernel_ms,
        kernels=trace.kernels,
        launches=trace.launches,
        short_kernels=trace.short_kernels,
        syncs=trace.syncs,
        verdict=str(verdict.disease),
        evidence=(*verdict.evidence, *verdict.secondary),
    )
