"""The one setting most worth changing for each disease, and what an experiment measured of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.doctor.evidence import Evidence, Experiment, Factor
from bench.doctor.verdict import Disease

# Two measurements of the same thing differ by a few percent; less than this is no gain.
WORTH_CHANGING = 1.05


@dataclass(frozen=True, slots=True)
class Remedy:
    """See the fields of the same names of `Verdict`."""

    setting: str
    gain: float | None
    measured: str


_HOW = {
    Factor.HALF: "compute in half precision (--dtype fp16, on a CPU bf16)",
    Factor.SYNC_OFF: "take .item(), .cpu() and synchronize() off the hot path; hand metrics to a queue",
    Factor.FIXED_SHAPE: "run one batch shape: pad to it, slice the padding off, warm up; cudnn.benchmark off",
    Factor.COMPILE: "compile the model (torch.compile)",
    Factor.GRAPH: "capture the forward as a CUDA graph",
    Factor.COMPILE_GRAPH: 'compile the model and capture it: torch.compile(mode="reduce-overhead")',
}
_LAUNCH_FACTORS = (Factor.COMPILE_GRAPH, Factor.GRAPH, Factor.COMPILE)
_FASTER_KERNELS = (Factor.HALF, Factor.COMPILE_GRAPH, Factor.COMPILE)


def remedy(disease: Disease, evidence: Evidence) -> Remedy:
    """What to change, and how much faster it was measured to be."""
    return _REMEDIES[disease](evidence)


def _feed_faster(evidence: Evidence) -> Remedy:
    setting = (
        "keep only the decode on the CPU, move uint8 from pinned memory, transform on the GPU; then more decode threads"
    )
    feed, service, trace = evidence.feed, evidence.service, evidence.trace
    if evidence.served:
        setting = "decode faster: more CPUs, or --decode-threads where some are free"
    if feed and service and service.img_s:
        told = f"measured: fed from memory {feed.img_s:,.0f} img/s, served {service.img_s:,.0f}"
        return Remedy(setting, feed.img_s / service.img_s, told)
    if feed and trace:
        told = f"measured: {trace.wall_ms:.2f} ms a batch, {feed.ms_per_batch:.2f} ms when fed from memory"
        return Remedy(setting, trace.wall_ms / feed.ms_per_batch, told)
    return Remedy(setting, None, "not measured: name the model as well, and it is fed from memory for comparison")


def _launch_less(evidence: Evidence) -> Remedy:
    return _best(evidence, _LAUNCH_FACTORS, "larger batches, or more lanes (--batch-size, --lanes)")


def _wait_less(evidence: Evidence) -> Remedy:
    return _best(evidence, (Factor.SYNC_OFF,), "find what waits beside the captured forward: the profile names it")


def _fix_the_shape(evidence: Evidence) -> Remedy:
    return _best(evidence, (Factor.FIXED_SHAPE,), "find what runs beside the captured forward: the profile names it")


def _move_fewer_bytes(evidence: Evidence) -> Remedy:
    larger = "a larger batch: the weights are read once for all of it"
    best = _best(evidence, (Factor.HALF,), larger)
    if best.gain is None or best.gain >= WORTH_CHANGING:
        return best
    return Remedy(larger, None, best.measured)


def _leave_it(evidence: Evidence) -> Remedy:
    measured = [experiment for experiment in evidence.experiments if experiment.gain]
    best = _best(evidence, _FASTER_KERNELS, "")
    if best.gain is not None and best.gain >= WORTH_CHANGING:
        return best
    told = "measured: no experiment made it faster" if measured else "no experiment was run"
    return Remedy("none: the device is doing its work", None, told)


def _ask_more(evidence: Evidence) -> Remedy:
    setting = "none of the server's: ask for more at once (more callers, ClassifyBatch, ClassifyStream)"
    feed = evidence.feed
    told = f"measured: fed from memory it answers {feed.img_s:,.0f} img/s" if feed else "not measured"
    return Remedy(setting, None, told)


def _stay_quick(evidence: Evidence) -> Remedy:
    return Remedy("none: no request waits for anything but its own forward", None, "nothing to gain for latency")


def _try_what_helped(evidence: Evidence) -> Remedy:
    if any(experiment.gain for experiment in evidence.experiments):
        return _best(evidence, tuple(Factor), "")
    return Remedy("look closer first: run it where there is a GPU, with a profile", None, "nothing was measured")


_REMEDIES: dict[Disease, Callable[[Evidence], Remedy]] = {
    Disease.FED_SLOWLY: _feed_faster,
    Disease.LAUNCH: _launch_less,
    Disease.SYNC: _wait_less,
    Disease.CHURN: _fix_the_shape,
    Disease.MEMORY: _move_fewer_bytes,
    Disease.COMPUTE: _leave_it,
    Disease.LITTLE_ASKED: _ask_more,
    Disease.LATENCY: _stay_quick,
    Disease.UNKNOWN: _try_what_helped,
}


def _best(evidence: Evidence, factors: Sequence[Factor], otherwise: str) -> Remedy:
    """The factor with the largest measured gain; the first of them where none was measured.

    Args:
        otherwise: what to change where a service has all of the factors already.
    """
    has = evidence.served.has if evidence.served else frozenset()
    factors = [factor for factor in factors if factor not in has]
    if not factors:
        return Remedy(otherwise, None, "not measured: what could be tried, the service has already")
    measured: dict[Factor, Experiment] = {each.factor: each for each in evidence.experiments if each.gain}
    tried = [factor for factor in factors if factor in measured]
    if not tried:
        return Remedy(_HOW[factors[0]], None, "not measured")
    best = max(tried, key=lambda factor: measured[factor].gain or 0.0)
    won = measured[best]
    told = f"measured: {best}, {won.before_ms:.2f} -> {won.after_ms:.2f} ms a batch"
    if won.gain is not None and won.gain < WORTH_CHANGING:
        told += ", no gain worth the change"
    return Remedy(_HOW[best], won.gain, told)
