"""One-factor experiments: change one thing on a copy of the model, and time a batch before and after.

The author of the decoder case found its disease with such: half precision, greedy, forward only, no `.item()`, compile.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from bench.doctor.evidence import Experiment, Factor
from bench.doctor.subject import Run, Subject, compare_ms, ms_per_batch, timed_s
from bench.doctor.syncs import PassThrough, SyncsOff

# Enough shapes to see what a new one costs; each is run once.
_MOST_SHAPES = 16
_NEEDS_GPU = frozenset({Factor.SYNC_OFF, Factor.FIXED_SHAPE, Factor.GRAPH, Factor.COMPILE_GRAPH})


class NotPossibleError(RuntimeError):
    """The experiment makes no sense on this subject; the message says why."""


def run_experiments(subject: Subject, factors: Iterable[Factor], seconds: float = 1.0) -> Iterator[Experiment]:
    """Each factor by itself.

    Args:
        seconds: of measuring for each side of an experiment.
    """
    is_gpu = subject.batch.is_cuda
    for factor in factors:
        if factor in _NEEDS_GPU and not is_gpu:
            yield Experiment(factor, note="needs a GPU")
        else:
            yield _run_one(factor, subject, seconds)


def sync_off(run: Run, seconds: float = 1.0, device_type: str = "cuda") -> Experiment:
    """The same loop with every wait for the device answered from memory, so that nothing waits."""
    syncs = SyncsOff(run, device_type)
    syncs.learn()
    if not syncs.count:
        return Experiment(Factor.SYNC_OFF, note="nothing to switch off: no .item(), .cpu() or synchronize() was called")
    with syncs:
        after_ms = ms_per_batch(syncs.run, seconds)
    with PassThrough():  # which costs every operation what watching for waits costs it
        before_ms = ms_per_batch(run, seconds)
    return Experiment(Factor.SYNC_OFF, before_ms, after_ms, f"{syncs.count} waits a batch")


def _run_one(factor: Factor, subject: Subject, seconds: float) -> Experiment:
    with torch.inference_mode():
        try:
            return _TRIALS[factor](subject, seconds)
        except NotPossibleError as error:
            return Experiment(factor, note=str(error))
        except Exception as error:
            # Anything that a stranger's model provokes in the compiler or the capture: a result too.
            first_line = next(iter(str(error).splitlines()), type(error).__name__)
            return Experiment(factor, note=f"failed: {first_line[:160]}")


def _half(subject: Subject, seconds: float) -> Experiment:
    if subject.batch.dtype is not torch.float32:
        raise NotPossibleError("it is in half precision already")
    dtype = torch.float16 if subject.batch.is_cuda else torch.bfloat16
    return _compare(Factor.HALF, subject.run, subject.copied(dtype).run, seconds)


def _sync_off(subject: Subject, seconds: float) -> Experiment:
    return sync_off(subject.copied().run, seconds)


def _fixed_shape(subject: Subject, seconds: float) -> Experiment:
    """Every smaller batch once, unseen, against the full batch again and again."""
    size = len(subject.batch)
    sizes = range(max(1, size - _MOST_SHAPES), size)
    if not sizes:
        raise NotPossibleError("a batch of 1 has one shape")
    copied = subject.copied()
    fixed_ms = ms_per_batch(copied.run, seconds)
    unseen_ms = 1e3 * sum(timed_s(replace(copied, batch=copied.batch[:rows]).run) for rows in sizes) / len(sizes)
    return Experiment(Factor.FIXED_SHAPE, unseen_ms, fixed_ms, "before: each batch of a size not seen before")


def _compile(subject: Subject, seconds: float) -> Experiment:
    return _compare(Factor.COMPILE, subject.run, _compiled(subject, "default"), seconds)


def _graph(subject: Subject, seconds: float) -> Experiment:
    return _compare(Factor.GRAPH, subject.run, _captured(subject.copied()), seconds)


def _compile_graph(subject: Subject, seconds: float) -> Experiment:
    return _compare(Factor.COMPILE_GRAPH, subject.run, _compiled(subject, "reduce-overhead"), seconds)


def _compiled(subject: Subject, mode: str) -> Run:
    copied = subject.copied()
    compiled = torch.compile(copied.module, mode=mode)
    for _ in range(3):  # compiles, then records the graph, then replays it
        compiled(copied.batch)
    return lambda: compiled(copied.batch)


def _captured(subject: Subject) -> Run:
    """A CUDA graph of one forward."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call, unused-ignore]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            subject.run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        subject.run()
    return graph.replay


def _compare(factor: Factor, before: Run, after: Run, seconds: float) -> Experiment:
    return Experiment(factor, *compare_ms(before, after, seconds))


_TRIALS: dict[Factor, Callable[[Subject, float], Experiment]] = {
    Factor.HALF: _half,
    Factor.SYNC_OFF: _sync_off,
    Factor.FIXED_SHAPE: _fixed_shape,
    Factor.COMPILE: _compile,
    Factor.GRAPH: _graph,
    Factor.COMPILE_GRAPH: _compile_graph,
}
