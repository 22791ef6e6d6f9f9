"""What the numbers say, in sentences. Every sentence holds the figures that it rests on."""

from collections.abc import Iterator

from bench.doctor.evidence import Evidence, Roofline, ServiceMetrics
from bench.doctor.verdict import Disease
from bench.nvml import DeviceSamples
from bench.trace import SHORT_KERNEL_US, TraceSummary

# Kernels at three times the floor leave most of the chip empty: the batch is small for it.
FAR_FROM_FLOOR = 3.0
# A busy GPU that draws less than half of its limit runs small or stalled kernels.
LITTLE_POWER = 0.5
# Clocks this far under the maximum, with power at the limit, cost throughput.
LOW_CLOCK, AT_THE_LIMIT = 0.8, 0.95
# The incident's machine starved its GPU at 85 % CPU.
HIGH_CPU_PERCENT = 85.0


def behind(disease: Disease, evidence: Evidence) -> Iterator[str]:
    """The evidence for a disease."""
    trace, service, roofline = evidence.trace, evidence.service, evidence.roofline
    if trace and trace.kernel_ms:
        yield (
            f"{'kernels run' if trace.kernels else 'the forward runs'} {trace.kernel_ms:.2f} of {trace.wall_ms:.2f} ms "
            f"a batch: the {_worker(trace)} is busy {trace.gpu_busy:.0%} of the time"
        )
        yield from _own(disease, trace)
    elif evidence.device:
        yield f"NVML's utilisation is {evidence.device.util_percent:.0f} %, CPU use {evidence.device.cpu_percent:.0f} %"
    if service:
        yield _of_service(service)
    if disease in (Disease.MEMORY, Disease.COMPUTE) and roofline:
        yield _of_roofline(roofline)
    if disease is Disease.MEMORY:
        yield "kernels wait for bytes: raising utilisation would not help, moving fewer bytes would"
    if disease is Disease.MEMORY and evidence.device:
        yield f"NVML sees device memory at work {evidence.device.memory_percent:.0f} % of the time"
    if disease is Disease.UNKNOWN and evidence.feed:
        yield f"fed from memory a batch of {evidence.feed.batch_size} takes {evidence.feed.ms_per_batch:.2f} ms"


def loss(disease: Disease, lost_ms: float, trace: TraceSummary | None) -> str:
    """Time that another disease costs beside the one named."""
    share = f" ({lost_ms / trace.wall_ms:.0%} of the wall)" if trace and trace.wall_ms else ""
    return f"{disease}: {lost_ms:.2f} ms a batch{share}"


def asides(disease: Disease, evidence: Evidence) -> Iterator[str]:
    """What else is worth knowing."""
    trace, roofline, device, service = evidence.trace, evidence.roofline, evidence.device, evidence.service
    if trace and trace.blocking_copies >= 1:
        yield f"{trace.blocking_copies:.0f} copies a batch hold the host: pageable memory, or without non_blocking=True"
    if trace and trace.batch_shapes > 1 and disease is not Disease.CHURN:
        yield f"{trace.batch_shapes} batch shapes were seen: a CUDA graph needs one"
    if trace and roofline and trace.kernels and trace.kernel_ms > FAR_FROM_FLOOR * roofline.floor_ms:
        yield (
            f"kernels take {trace.kernel_ms / roofline.floor_ms:.0f} times the floor of {roofline.floor_ms:.3f} ms: "
            f"a larger batch would use the chip better"
        )
    if service and service.queue_ms > service.forward_ms and disease is not Disease.LITTLE_ASKED:
        yield f"requests queue {service.queue_ms:.1f} ms, longer than a forward takes ({service.forward_ms:.1f} ms)"
    if device:
        yield from _of_device(disease, device)


def _own(disease: Disease, trace: TraceSummary) -> Iterator[str]:
    if disease is Disease.LAUNCH:
        yield (
            f"the host makes {trace.launches:.0f} launches a batch for {trace.kernels:.0f} kernels, "
            f"{trace.short_kernels:.0%} of them under {SHORT_KERNEL_US:.0f} us; the gaps take {trace.launch_ms:.2f} ms"
        )
    if disease is Disease.SYNC:
        yield (
            f"the host waits for the GPU {trace.syncs:.1f} times a batch, after which nothing is queued: "
            f"{trace.sync_ms:.2f} ms idle"
        )
    if disease is Disease.CHURN:
        yield (
            f"{trace.batch_shapes} batch shapes; {trace.searches:.1f} convolutions a batch look for an algorithm, "
            f"{trace.churn_ms:.2f} ms"
        )
    if disease is Disease.FED_SLOWLY:
        yield (
            f"the {_worker(trace)} idles {trace.host_ms:.2f} ms a batch while the host prepares data, "
            f"and {trace.copy_ms:.2f} ms while it is copied"
        )
    if disease in (Disease.LITTLE_ASKED, Disease.LATENCY) and trace.host_ms:
        yield f"the {_worker(trace)} idles {trace.host_ms:.2f} ms a batch because no request is there"


def _worker(trace: TraceSummary) -> str:
    return "GPU" if trace.kernels else "engine (on a CPU)"


def _of_service(service: ServiceMetrics) -> str:
    return (
        f"{service.img_s:,.0f} img/s, {service.in_flight:.1f} images in the house, "
        f"{service.batch_fill:.1f} of {service.batch_size} in a batch; an image waits {service.decode_wait_ms:.1f} ms "
        f"for a decoder, spends {service.decode_ms:.1f} in decode, {service.queue_ms:.1f} in the queue, "
        f"{service.forward_ms:.1f} in the forward; "
        f"{service.cpus} CPUs could decode {service.cpu_ceiling_img_s:,.0f} img/s, "
        f"one lane answer {service.gpu_ceiling_img_s:,.0f}"
    )


def _of_roofline(roofline: Roofline) -> str:
    return (
        f"the floor is {roofline.floor_ms:.3f} ms a batch: {roofline.compute_ms:.3f} for arithmetic, "
        f"{roofline.memory_ms:.3f} for bytes"
    )


def _of_device(disease: Disease, device: DeviceSamples) -> Iterator[str]:
    power = device.power_w / device.power_limit_w if device.power_limit_w else 1.0
    clock = device.sm_clock_mhz / device.sm_clock_max_mhz if device.sm_clock_max_mhz else 1.0
    if disease in (Disease.COMPUTE, Disease.MEMORY) and power < LITTLE_POWER:
        yield f"busy, but at {power:.0%} of its power limit: utilisation counts time with a kernel, not how full it is"
    if clock < LOW_CLOCK and power > AT_THE_LIMIT:
        yield f"clocks are at {clock:.0%} of their maximum with power at its limit: the chip is throttled"
    if device.cpu_percent >= HIGH_CPU_PERCENT and disease is not Disease.FED_SLOWLY:
        yield f"the CPU is {device.cpu_percent:.0f} % busy: what prepares the data has no room left"
