"""Profiles a process while it serves: what the device does in a slice of time under real load.

Kernel times are the device's own and hardly change under a profiler, but launches become slower. So the summary here is
to be set against the pace measured without it: `TraceSummary.at_wall`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from prometheus_client import REGISTRY
from torch.profiler import ProfilerActivity, profile, record_function

from bench.events import Event, from_profiler
from bench.trace import TraceSummary, summarize

_BEGIN = "warmlane: begin of slice"
_END = "warmlane: end of slice"
# The profiler's own start: the first calls under it take long.
_SETTLE_S = 0.05
_POLL_S = 0.002


class ProbeError(RuntimeError):
    """There was nothing to profile."""


@dataclass(frozen=True, slots=True)
class Done:
    """Work finished so far."""

    batches: float
    images: float

    def since(self, earlier: "Done") -> "Done":
        """The work in between."""
        return Done(self.batches - earlier.batches, self.images - earlier.images)


@dataclass(frozen=True, slots=True)
class Live:
    """What the device did under load.

    Attributes:
        trace: means of a batch, at the pace under the profiler; all zero without a GPU.
        batch_fill: mean images in a batch.
    """

    trace: TraceSummary
    batch_fill: float


def served() -> Done:
    """What this process has served, by its own metrics."""
    batches, images = (REGISTRY.get_sample_value(f"warmlane_batch_fill_{part}") or 0.0 for part in ("count", "sum"))
    return Done(batches, images)


def profile_live(
    batches: int, limit_s: float, done: Callable[[], Done] = served, stop: Callable[[], None] = lambda: None
) -> Live:
    """Profile this process until `batches` have been served, or `limit_s` seconds have passed.

    Args:
        stop: called at the end of the slice, before its events are read, which takes long beside a running load.

    Raises:
        ProbeError: nothing was served meanwhile.
    """
    events, work = live_events(batches, limit_s, done, stop)
    count = round(work.batches)
    if not count:
        raise ProbeError(f"no batch was served in {limit_s:g} s")
    return Live(summarize(events, count), work.images / work.batches)


def live_events(
    batches: int, limit_s: float, done: Callable[[], Done] = served, stop: Callable[[], None] = lambda: None
) -> tuple[list[Event], Done]:
    """The events of the whole process in a slice of time, and the work done in it."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, acc_events=True) as prof:
        time.sleep(_SETTLE_S)
        before, stop_s = done(), time.monotonic() + limit_s
        with record_function(_BEGIN):
            pass
        while done().since(before).batches < batches and time.monotonic() < stop_s:
            time.sleep(_POLL_S)
        with record_function(_END):
            work = done().since(before)
    stop()
    return _slice(from_profiler(prof)), work


def _slice(events: Sequence[Event]) -> list[Event]:
    """What began between the two marks."""
    begin_us = min(event.end_us for event in events if event.name == _BEGIN)
    end_us = min(event.start_us for event in events if event.name == _END)
    return [event for event in events if begin_us <= event.start_us < end_us]
