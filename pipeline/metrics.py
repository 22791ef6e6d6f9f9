"""What is counted along the way of an image, in the words of Prometheus.

The one thing that happens to every image, its answer, is cheap: `count_answer` only puts its times aside, and `flush`
writes many at once; slots are counted when `flush` asks, not when they change hands. Written one by one they would
cost fifteen times as much (bench/LOG.md, 2026-11-30). In one process a scrape flushes first, so that nobody sees the
difference; a process whose files another one reads calls `flush_every`.

Each gauge adds up over the processes that live ("livesum"): those of a dead one vanish with it.
"""

import atexit
import threading
import time
from bisect import bisect_left
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STAGES = ("admission", "decode", "queue", "transfer", "forward", "reply")
STATUSES = (
    "OK",
    "CANCELLED",
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "UNAVAILABLE",
    "NOT_FOUND",
    "INTERNAL",
)
DROPS = (
    ("admission", "overloaded"),
    ("admission", "late"),
    ("admission", "expired"),
    ("decode", "overloaded"),
    ("decode", "expired"),
    ("decode", "cancelled"),
    ("batch", "expired"),
    ("batch", "cancelled"),
)
# Why a file was not for the GPU's decoder; "" where it was. Of those, "refused by the GPU" counts the ones given back.
ROUTES = (
    "",
    "progressive",
    "not baseline",
    "CMYK",
    "stored as RGB",
    "chroma sampling",
    "several scans",
    "incomplete",
    "damaged header",
    "turned",
    "too small",
    "too large",
    "larger than the canvas",
    "refused by the GPU",
)
ROLES = ("frontend", "engine")
STAGE_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
# As many answers as are put aside where nobody scrapes.
_MOST_PENDING = 4096


class _Pool(Protocol):
    @property
    def in_use(self) -> int: ...


_pending: deque[Sequence[float]] = deque()
_pending_routes: deque[str] = deque()
_pools: WeakSet[_Pool] = WeakSet()
_flushing = threading.Lock()


class _FlushFirst(Collector):
    """Has no metrics: collected before those below, since it is registered before them."""

    def describe(self) -> Iterable[Metric]:
        """None; without this, registering would collect."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Write what was put aside."""
        flush()
        return ()


REGISTRY.register(_FlushFirst())

OUTCOMES = Counter("warmlane_images_total", "Images answered, by gRPC status.", ["status"])
DROPPED = Counter(
    "warmlane_dropped_total", "Requests dropped before a stage spent anything on them.", ["stage", "reason"]
)
ROUTED = Counter(
    "warmlane_gpu_decode_total",
    "JPEGs looked at for the GPU's decoder, by why it was not for them; no reason where they were put to it.",
    ["reason"],
)
STAGE_SECONDS = Histogram(
    "warmlane_stage_seconds", "Wall time of one image in a stage.", ["stage"], buckets=STAGE_BUCKETS_S
)
SLOTS_IN_USE = Gauge("warmlane_slots_in_use", "Slots that hold an image on its way.", multiprocess_mode="livesum")
BATCH_FILL = Histogram(
    "warmlane_batch_fill", "Real images in a batch.", buckets=(1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
)
PADDING_ROWS = Counter("warmlane_padding_rows_total", "Rows of batches computed without an image, on a GPU.")
LANES_BUSY = Gauge("warmlane_lanes_busy", "Lanes that run a batch.", multiprocess_mode="livesum")
LANE_BUSY_SECONDS = Counter(
    "warmlane_lane_busy_seconds_total", "Time in which at least one lane of an engine ran a batch."
)
ENGINES_WARM = Gauge("warmlane_engines_warm", "Engines that answer.", multiprocess_mode="livesum")
RECOMPILES = Counter("warmlane_recompiles_total", "Compilations and graph breaks after warm-up; each is a bug.")
PROCESS_RESTARTS = Counter("warmlane_process_restarts_total", "Processes started in the place of dead ones.", ["role"])

# From 0 on: of a counter that appears with its first event, Prometheus would not see that event as growth.
for _status in STATUSES:
    OUTCOMES.labels(_status)
for _stage, _reason in DROPS:
    DROPPED.labels(_stage, _reason)
for _route in ROUTES:
    ROUTED.labels(_route)
for _stage in STAGES:
    STAGE_SECONDS.labels(_stage)
for _role in ROLES:
    PROCESS_RESTARTS.labels(_role)


def count_answer(stages_ms: Sequence[float]) -> None:
    """Count an image that was answered OK.

    Args:
        stages_ms: milliseconds that it spent in each of `STAGES`.
    """
    _pending.append(stages_ms)
    if len(_pending) >= _MOST_PENDING:
        flush()


def count_route(reason: str) -> None:
    """Count a JPEG that was looked at for the GPU's decoder; see `ROUTES`."""
    _pending_routes.append(reason)
    if len(_pending_routes) >= _MOST_PENDING:
        flush()


def watch_slots(pool: _Pool) -> None:
    """Count this pool's slots in use, for as long as it lives."""
    with _flushing:
        _pools.add(pool)


def flush() -> None:
    """Write the answers that were put aside, and how many slots are in use. From any thread."""
    with _flushing:
        answers = [_pending.popleft() for _ in range(len(_pending))]
        routes = Tally(_pending_routes.popleft() for _ in range(len(_pending_routes)))
        SLOTS_IN_USE.set(sum(pool.in_use for pool in _pools))
    for reason, count in routes.items():
        ROUTED.labels(reason).inc(count)
    if not answers:
        return
    OUTCOMES.labels("OK").inc(len(answers))
    for stage, milliseconds in zip(STAGES, zip(*answers, strict=True), strict=True):
        observe_all(STAGE_SECONDS.labels(stage), [each / 1e3 for each in milliseconds])


def flush_every(seconds: float) -> None:
    """Flush from a thread of its own, and when the process ends: for a process whose registry nobody scrapes."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            flush()

    threading.Thread(target=run, name="metrics", daemon=True).start()
    atexit.register(flush)


def observe_all(child: Histogram, seconds: Sequence[float]) -> None:
    """As `child.observe` of each, with one write a bucket; `child` has `STAGE_BUCKETS_S`."""
    child._sum.inc(sum(seconds))
    for bucket, count in Tally(bisect_left(STAGE_BUCKETS_S, each) for each in seconds).items():
        child._buckets[bucket].inc(count)
