"""From evidence to a verdict, by rules that are read top to bottom. Measures nothing.

1. Nobody asks for more?                      idle because little is asked of it, or healthy for a latency goal
2. The device idles while there is work?      whatever holds it up longest names the disease
3. The device is busy?                        memory-bound where bytes set the pace, else compute-bound
"""

from typing import Literal

from bench.doctor import advice, sentences
from bench.doctor.evidence import Evidence, ServiceMetrics
from bench.doctor.verdict import Disease, Verdict
from bench.trace import TraceSummary

Goal = Literal["throughput", "latency"]

# The incident's last rung, called healthy there, was at 73 %; its rung before, still launch-bound, at 70 %.
BUSY_ENOUGH = 0.73
# For latency only time in a request's way counts: at half, no fix outside the kernels can halve the latency.
BUSY_ENOUGH_FOR_LATENCY = 0.5
# Empty more than half of the time: Little's law below one half, or more than half of the wall without work.
LITTLE_IN_FLIGHT = 0.5
LITTLE_SHARE = 0.5
# A batch counts as full from here; a lone straggler per batch should not change the verdict.
FULL_BATCH = 0.9
# CPU use at which the incident's machine starved its GPU.
CPU_SATURATED_PERCENT = 85.0
# Below half of what the CPUs could decode they wait for images, whatever they could bring of them at most.
MUCH_DECODING = 0.5
# Bytes set the pace where moving the fewest possible takes half of the kernels' time: the count leaves out activations.
MEMORY_SHARE = 0.5
# NVML counts time, not bandwidth: below this, memory rests too often to be the limit.
MEMORY_BUSY_PERCENT = 70.0
# Kernels this close to the arithmetic floor are computing, whatever NVML says of memory.
COMPUTE_SHARE = 0.3
# Losses below a tenth of the wall are not worth a sentence.
WORTH_SAYING = 0.1


def diagnose(evidence: Evidence, goal: Goal = "throughput") -> Verdict:
    """Name the disease, what shows it and what to change."""
    disease = name_disease(evidence, goal)
    remedy = advice.remedy(disease, evidence)
    losses = _losses(evidence.trace, evidence.service) if evidence.trace else {}
    others = [
        sentences.loss(other, lost_ms, evidence.trace)
        for other, lost_ms in sorted(losses.items(), key=lambda item: -item[1])
        if evidence.trace and other != disease and lost_ms > WORTH_SAYING * evidence.trace.wall_ms
    ]
    return Verdict(
        disease,
        tuple(sentences.behind(disease, evidence)),
        remedy.setting,
        remedy.gain,
        remedy.measured,
        (*others, *sentences.asides(disease, evidence)),
    )


def name_disease(evidence: Evidence, goal: Goal) -> Disease:
    """The rules of the module's docstring."""
    busy = active_busy(evidence)
    enough = BUSY_ENOUGH if goal == "throughput" else BUSY_ENOUGH_FOR_LATENCY
    if _little_is_asked(evidence) and (goal == "throughput" or evidence.trace is None):
        return Disease.LITTLE_ASKED if goal == "throughput" else Disease.LATENCY
    if busy is None:
        return Disease.UNKNOWN
    if busy < enough:
        return _largest_loss(evidence)
    if goal == "latency" and (busy < BUSY_ENOUGH or _little_is_asked(evidence)):
        return Disease.LATENCY
    return Disease.MEMORY if _bytes_set_the_pace(evidence) else Disease.COMPUTE


def active_busy(evidence: Evidence) -> float | None:
    """Share of the time with work at hand in which a kernel ran, 0 to 1; NVML's figure where there is no trace."""
    trace = evidence.trace
    if trace and trace.kernel_ms:
        active_ms = trace.wall_ms - _waiting_ms(trace, evidence.service)
        return min(1.0, trace.kernel_ms / active_ms) if active_ms > 0 else 0.0
    return evidence.device.util_percent / 100 if evidence.device else None


def _little_is_asked(evidence: Evidence) -> bool:
    service, trace = evidence.service, evidence.trace
    if service and service.in_flight < LITTLE_IN_FLIGHT:
        return True
    if trace and trace.kernel_ms:
        return _waiting_ms(trace, service) > LITTLE_SHARE * trace.wall_ms
    return service is not None and evidence.device is not None and _has_room(service, evidence.device.util_percent)


def _has_room(service: ServiceMetrics, util_percent: float) -> bool:
    """A device that idles although nothing queues before it and the CPUs could bring more."""
    no_queue = service.queue_ms <= service.forward_ms and service.batch_fill < FULL_BATCH * service.batch_size
    return util_percent < 100 * BUSY_ENOUGH and no_queue and not _cpus_are_the_limit(service)


def _cpus_are_the_limit(service: ServiceMetrics) -> bool:
    """The CPUs decode as fast as they can and it is not enough for the device, or images queue for the decoders."""
    is_short = service.cpu_ceiling_img_s < BUSY_ENOUGH * service.gpu_ceiling_img_s
    piles_up = service.waiting_to_decode >= 1 and service.decode_wait_ms > service.queue_ms + service.forward_ms
    return piles_up or (is_short and service.img_s >= MUCH_DECODING * service.cpu_ceiling_img_s)


def _largest_loss(evidence: Evidence) -> Disease:
    if evidence.trace and evidence.trace.kernel_ms:
        losses = _losses(evidence.trace, evidence.service)
        return max(losses, key=lambda disease: losses[disease])
    cpus_busy = evidence.device is not None and evidence.device.cpu_percent >= CPU_SATURATED_PERCENT
    if cpus_busy or (evidence.service and _cpus_are_the_limit(evidence.service)):
        return Disease.FED_SLOWLY
    return Disease.UNKNOWN


def _losses(trace: TraceSummary, service: ServiceMetrics | None) -> dict[Disease, float]:
    """Milliseconds a batch in which the device idles although there is work, by what holds it up."""
    return {
        Disease.FED_SLOWLY: trace.host_ms + trace.copy_ms - _waiting_ms(trace, service),
        Disease.SYNC: trace.sync_ms,
        Disease.CHURN: trace.churn_ms,
        Disease.LAUNCH: trace.launch_ms,
    }


def _waiting_ms(trace: TraceSummary, service: ServiceMetrics | None) -> float:
    """The part of `host_ms` that waits for requests instead of preparing them."""
    if service is None:
        return trace.waiting_ms
    # The preparing is done by other threads or processes, so this one's CPU use says nothing.
    is_starved = service.in_flight >= LITTLE_IN_FLIGHT and _cpus_are_the_limit(service)
    return 0.0 if is_starved else trace.host_ms


def _bytes_set_the_pace(evidence: Evidence) -> bool:
    roofline, trace, device = evidence.roofline, evidence.trace, evidence.device
    if roofline and trace:
        if roofline.compute_ms >= COMPUTE_SHARE * trace.kernel_ms:
            return roofline.memory_ms > roofline.compute_ms
        if roofline.memory_ms >= MEMORY_SHARE * trace.kernel_ms:
            return True
    return device is not None and device.memory_percent >= MEMORY_BUSY_PERCENT
