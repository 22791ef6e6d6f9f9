"""Records what this process does while it serves: the slice of time that a number of batches take, by torch's profiler.

On a GPU that is every kernel, copy and CUDA call of the process, whichever thread made it; without one, the operators
of all threads. The profiler is started and stopped on a thread of its own, so that the one that launches does not stand
still for it: to start CUDA's tracing takes a second or two the first time, and to gather a trace takes long too.
"""

import asyncio
import gzip
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch._C._autograd import _add_metadata_json
from torch._C._profiler import _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from pipeline import metrics
from pipeline.errors import Overloaded

# Named ranges of no length in the trace: the slice lies between them.
BEGIN_MARK = "warmlane: begin of slice"
END_MARK = "warmlane: end of slice"
# Key in the trace: an object with the fields of `Work`.
WORK_KEY = "warmlane"
# Named range around each forward on a CPU, where no kernels tell when the engine works.
FORWARD_MARK = "warmlane: forward"

# The profiler's own start: the first calls under it take long.
_SETTLE_S = 0.05
_POLL_S = 0.002
_RETRY_MS = 1000

# One for the process, as the profiler is.
_recording = threading.Lock()


@dataclass(frozen=True, slots=True)
class Done:
    """Work finished so far."""

    batches: float
    images: float

    def since(self, earlier: "Done") -> "Done":
        """The work in between."""
        return Done(self.batches - earlier.batches, self.images - earlier.images)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in the slice of a trace.

    Attributes:
        seconds: length of the slice.
        cpu_seconds: CPU time of this process in it, all threads.
    """

    batches: float
    images: float
    seconds: float
    cpu_seconds: float


async def record_aside(batches: int, limit_s: float) -> bytes:
    """`record` on another thread; it ends early if the caller leaves.

    Raises:
        Overloaded: see `record`.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(record, batches, limit_s, stop=stop)
    finally:
        stop.set()


def served() -> Done:
    """What this process has served, by its own metrics."""
    samples = [sample for family in metrics.BATCH_FILL.collect() for sample in family.samples]
    batches, images = (
        sum(sample.value for sample in samples if sample.name == f"warmlane_batch_fill_{part}")
        for part in ("count", "sum")
    )
    return Done(batches, images)


def record(
    batches: int,
    limit_s: float,
    done: Callable[[], Done] = served,
    on_end: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
) -> bytes:
    """Profile this process until `batches` have been served, `limit_s` seconds have passed, or `stop` is set.

    Blocks meanwhile, so it wants a thread of its own. What was served may be nothing.

    Args:
        on_end: called at the end of the slice, before its events are read, which takes long beside a running load.

    Returns:
        A Chrome trace, JSON, gzip'd, with the `Work` under `WORK_KEY`. It reaches a little over both ends of the slice,
        which are marked.

    Raises:
        Overloaded: a profile is being recorded already.
    """
    if not _recording.acquire(blocking=False):
        raise Overloaded("a profile is being recorded already: there is one at a time", _RETRY_MS)
    try:
        with tempfile.TemporaryDirectory(prefix="warmlane-profile-") as folder:
            path = Path(folder) / "trace.json"
            with _profiler(path, on_end):
                work = _slice(batches, limit_s, done, stop or threading.Event())
                _add_metadata_json(WORK_KEY, json.dumps(asdict(work)))
            # Fast rather than small: the trace goes no further than this machine.
            return gzip.compress(path.read_bytes(), 1)
    finally:
        _recording.release()


@contextmanager
def _profiler(path: Path, on_end: Callable[[], None]) -> Iterator[None]:
    """Profile the block, and write its trace.

    This is the class under `torch.profiler.profile`. It leaves the events in C++, where the other, to accumulate them,
    makes a Python object of each and holds Python's lock for seconds.
    """
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    with profile(  # type: ignore[no-untyped-call, unused-ignore]
        use_kineto=True,
        use_device="cuda" if on_gpu else None,
        # CUDA's calls are seen on all threads anyway; to see operators there costs each of them some time.
        experimental_config=_ExperimentalConfig(profile_all_threads=not on_gpu),
    ) as events:
        yield
    on_end()
    events.export_chrome_trace(str(path))


def _slice(batches: int, limit_s: float, done: Callable[[], Done], stop: threading.Event) -> Work:
    """Wait out the slice."""
    time.sleep(_SETTLE_S)
    with record_function(BEGIN_MARK):
        before, started, cpu_started = done(), time.monotonic(), time.process_time()
    while done().since(before).batches < batches and time.monotonic() < started + limit_s and not stop.is_set():
        stop.wait(_POLL_S)
    with record_function(END_MARK):
        made = done().since(before)
        return Work(made.batches, made.images, time.monotonic() - started, time.process_time() - cpu_started)
