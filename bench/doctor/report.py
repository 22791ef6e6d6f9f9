"""The examination on the terminal: one table a layer, then the verdict."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from bench.doctor.evidence import DirectFeed, Evidence, Experiment, Roofline, Served, ServiceMetrics
from bench.doctor.verdict import Verdict
from bench.nvml import DeviceSamples
from bench.trace import SHORT_KERNEL_US, TraceSummary

Rows = Iterable[tuple[str, str]]


def print_report(console: Console, evidence: Evidence, unseen: Sequence[str], verdict: Verdict) -> None:
    """Layers in the order in which they were looked at."""
    if evidence.served:
        _table(console, "the service", _served_rows(evidence.served))
    if evidence.device:
        _table(console, f"NVML, {evidence.device.name}", _device_rows(evidence.device))
    if evidence.service:
        _table(console, "the service's metrics", _service_rows(evidence.service))
    if evidence.feed:
        _table(console, "direct feed: random numbers straight into the model", _feed_rows(evidence.feed))
    if evidence.trace:
        _table(console, f"profile, means of {evidence.trace.batches} batches", _trace_rows(evidence.trace))
    if evidence.experiments:
        _table(console, "experiments: one factor changed", map(_experiment_row, evidence.experiments))
    if evidence.roofline:
        _table(console, "roofline", _roofline_rows(evidence.roofline))
    _list(console, "not looked at:", unseen)
    _print_verdict(console, verdict)


def to_json(evidence: Evidence, unseen: Sequence[str], verdict: Verdict) -> str:
    """The same as one line of JSON."""
    return json.dumps({"verdict": asdict(verdict), "evidence": asdict(evidence), "unseen": list(unseen)})


def _print_verdict(console: Console, verdict: Verdict) -> None:
    gain = f": [bold]{verdict.gain:.1f} times faster[/bold]" if verdict.gain else ""
    console.print(f"\n[bold]verdict: {verdict.disease}[/bold]")
    _list(console, "", verdict.evidence)
    console.print("most worth changing:", verdict.setting, style="bold", markup=False)
    console.print(f"  {verdict.measured}{gain}")
    _list(console, "also seen:", verdict.secondary)


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines and title:
        console.print(title)
    for line in lines:
        console.print(f"  - {line}", markup=False, highlight=False)


def _table(console: Console, title: str, rows: Rows) -> None:
    table = Table(title=title, title_justify="left", show_header=False, min_width=60)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _served_rows(served: Served) -> Rows:
    yield "model", f"{served.model}, {served.dtype}, batches of {served.batch_size}"
    yield "device", served.device
    yield "execution", served.execution


def _device_rows(device: DeviceSamples) -> Rows:
    yield "utilisation (time with any kernel)", f"{device.util_percent:.0f} %"
    yield "memory at work", f"{device.memory_percent:.0f} %"
    yield "SM clock", f"{device.sm_clock_mhz:.0f} of {device.sm_clock_max_mhz:.0f} MHz"
    yield "power", f"{device.power_w:.0f} of {device.power_limit_w:.0f} W"
    yield "CPU beside it", f"{device.cpu_percent:.0f} %"


def _service_rows(service: ServiceMetrics) -> Rows:
    yield "answered", f"{service.img_s:,.0f} img/s"
    yield "in the house", f"{service.in_flight:.1f} images"
    yield "batch fill", f"{service.batch_fill:.1f} of {service.batch_size}"
    yield (
        "wait for a decoder, decode, queue, forward",
        f"{service.decode_wait_ms:.1f}, {service.decode_ms:.1f}, {service.queue_ms:.1f}, {service.forward_ms:.1f} ms",
    )


def _feed_rows(feed: DirectFeed) -> Rows:
    yield f"a batch of {feed.batch_size}", f"{feed.ms_per_batch:.3f} ms"
    yield "images", f"{feed.img_s:,.0f} img/s"


def _trace_rows(trace: TraceSummary) -> Rows:
    yield "wall", f"{trace.wall_ms:.3f} ms"
    if not trace.kernels:
        yield "forwards on the CPU", f"{trace.kernel_ms:.3f} ms ({trace.gpu_busy:.0%})"
        yield "engine idle", f"{trace.gap_ms:.3f} ms"
        return
    yield "kernels, union", f"{trace.kernel_ms:.3f} ms ({trace.gpu_busy:.0%})"
    yield "gaps", f"{trace.gap_ms:.3f} ms"
    yield "  host prepares or waits for work", f"{trace.host_ms:.3f} ms, of it waiting {trace.waiting_ms:.3f}"
    yield "  copies", f"{trace.copy_ms:.3f} ms"
    yield "  after a wait for the GPU", f"{trace.sync_ms:.3f} ms"
    yield "  launching", f"{trace.launch_ms:.3f} ms"
    yield "  looking for algorithms", f"{trace.churn_ms:.3f} ms"
    yield "kernels, launches by the host", f"{trace.kernels:.1f}, {trace.launches:.1f}"
    yield f"kernels under {SHORT_KERNEL_US:.0f} us", f"{trace.short_kernels:.0%}"
    yield "waits for the GPU", f"{trace.syncs:.1f}, {trace.sync_wait_ms:.3f} ms"
    yield (
        "copies in, out",
        f"{trace.copies_in_ms:.3f}, {trace.copies_out_ms:.3f} ms, {trace.blocking_copies:.1f} blocking",
    )
    yield "batch shapes", f"{trace.batch_shapes}"


def _experiment_row(experiment: Experiment) -> tuple[str, str]:
    if not experiment.gain:
        return experiment.factor, experiment.note
    note = f" ({experiment.note})" if experiment.note else ""
    return (
        experiment.factor,
        f"{experiment.before_ms:.3f} -> {experiment.after_ms:.3f} ms, {experiment.gain:.2f} times{note}",
    )


def _roofline_rows(roofline: Roofline) -> Rows:
    yield "arithmetic", f"{roofline.flops / 1e9:,.2f} GFLOP at {roofline.matmul_flops_s / 1e12:,.2f} TFLOP/s"
    yield "bytes, at least", f"{roofline.bytes_moved / 1e6:,.1f} MB at {roofline.copy_bytes_s / 1e9:,.0f} GB/s"
    yield "floor of a batch", f"{roofline.floor_ms:.4f} ms"
