"""What a process does in a slice of time under real load, from a profile that it made of itself (`pipeline.profiling`).

Kernel times are the device's own and hardly change under a profiler, but launches become slower. So the summary here is
to be set against the pace measured without it: `TraceSummary.at_wall`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.events import Chrome, Event, events_of, parse
from bench.intervals import Interval
from bench.trace import TraceSummary, summarize
from pipeline.profiling import BEGIN_MARK, END_MARK, WORK_KEY, Done, Work, record, served


class ProbeError(RuntimeError):
    """There was nothing to profile."""


@dataclass(frozen=True, slots=True)
class Slice:
    """What began between the two marks of a profile.

    Attributes:
        window: begin and end in microseconds, on the events' clock.
    """

    events: Sequence[Event]
    window: Interval
    work: Work


@dataclass(frozen=True, slots=True)
class Live:
    """What the device did under load.

    Attributes:
        trace: means of a batch, at the pace under the profiler; no kernels without a GPU.
        batch_fill: mean images in a batch.
    """

    trace: TraceSummary
    batch_fill: float


def profile_live(
    batches: int, limit_s: float, done: Callable[[], Done] = served, on_end: Callable[[], None] = lambda: None
) -> Live:
    """Profile this process until `batches` have been served, or `limit_s` seconds have passed.

    Args:
        on_end: see `record`.

    Raises:
        ProbeError: nothing was served meanwhile.
    """
    return means(read(record(batches, limit_s, done, on_end)))


def read(trace: bytes, name: str = "the profile") -> Slice:
    """The slice in what `record` returned.

    Raises:
        ValueError: it is not from `record`.
    """
    content = parse(trace, name)
    if not is_marked(content):
        raise ValueError(f"{name} is a trace without the marks of a profile of the server")
    return marked(content)


def is_marked(trace: Chrome) -> bool:
    """Whether a trace is from `record`, and whole."""
    names = {row.get("name") for row in trace["traceEvents"]}
    return WORK_KEY in trace and {BEGIN_MARK, END_MARK} <= names


def marked(trace: Chrome) -> Slice:
    """The slice of a trace that `is_marked`."""
    events = events_of(trace)
    begin_us = min(event.end_us for event in events if event.name == BEGIN_MARK)
    end_us = min(event.start_us for event in events if event.name == END_MARK)
    inside = [event for event in events if begin_us <= event.start_us < end_us]
    return Slice(inside, (begin_us, end_us), Work(**trace[WORK_KEY]))


def means(found: Slice) -> Live:
    """The means of a batch.

    Raises:
        ProbeError: the slice holds no batch.
    """
    work = found.work
    if not round(work.batches):
        raise ProbeError(f"no batch was served in {work.seconds:.1f} s")
    return Live(summarize(found.events, round(work.batches), found.window), work.images / work.batches)
