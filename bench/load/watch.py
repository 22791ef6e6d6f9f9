"""What a service and its GPU do while they are measured: its metrics page and NVML, looked at again and again."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Self

from bench.load.looks import Look, look
from bench.metrics_reading import MetricsError
from bench.nvml import Moment, Sampler
from bench.summary import STAGES

_PERIOD_S = 0.5
# As many points as a plot can show.
_MOST_POINTS = 240
_MIB = 2**20

Series = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen within one measurement; empty where nobody could look.

    Attributes:
        cpu_percent_of: of one core, by process.
        machine_cpu_percent: of one core, by everything that ran on this machine.
        rss_mib_of: resident memory at the end, by process; shared memory counts in each.
        lane_busy: share of the time in which at least one lane of an engine ran a batch, 0 to 1, mean of the engines.
        in_house, queueing: images on their way in the server, and of those the ones that wait for the engine; means.
        batch_fill: mean images in a batch, as the server counts.
        useful: share of the computed rows that were real images.
        stages_ms: mean of an image, as the server counts.
        gpu: NVML's means, by the names of `bench.nvml.Moment`.
        series: `at_s` from the start of the measurement, and what changed with it.
        gpu_series: the same of NVML, which is read at its own pace.
    """

    cpu_percent_of: Mapping[str, float] = field(default_factory=dict)
    machine_cpu_percent: float = float("nan")
    rss_mib_of: Mapping[str, float] = field(default_factory=dict)
    lane_busy: float = float("nan")
    in_house: float = float("nan")
    queueing: float = float("nan")
    batch_fill: float = float("nan")
    useful: float = float("nan")
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    gpu: Mapping[str, float] = field(default_factory=dict)
    series: Series = field(default_factory=dict)
    gpu_series: Series = field(default_factory=dict)


class Watch:
    """Looks every half second for as long as the `with` block lasts.

    Args:
        metrics_url: of the service's metrics page; empty to leave it alone.
        gpu: samples the GPU meanwhile.
        on_look: called with the newest look and the one before it, from another thread.

    Attributes:
        unseen: why the page could not be read the last time; empty where it could.
    """

    def __init__(
        self,
        metrics_url: str = "",
        gpu: Sampler | None = None,
        on_look: Callable[[Look, Look], None] = lambda before, after: None,
        period_s: float = _PERIOD_S,
    ) -> None:
        self.unseen = ""
        self._url = metrics_url
        self._gpu = gpu
        self._on_look = on_look
        self._period_s = period_s
        self._looks: list[Look] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        if self._gpu:
            self._gpu.__enter__()
        if self._url:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._url:
            self._thread.join()
        if self._gpu:
            self._gpu.__exit__(*exc)

    def between(self, open_s: float, stop_s: float) -> Watched:
        """What was seen between two moments of CLOCK_MONOTONIC."""
        looks = [each for each in list(self._looks) if open_s <= each.at_s <= stop_s]
        moments = [each for each in self._gpu.history() if open_s <= each.at_s <= stop_s] if self._gpu else []
        return watched(looks, moments, open_s)

    def _run(self) -> None:
        while True:
            is_last = self._stop.wait(self._period_s if self._looks else 0.0)
            self._look()
            if is_last:
                return

    def _look(self) -> None:
        try:
            self._looks.append(look(self._url))
        except MetricsError as error:
            self.unseen = str(error)
            return
        self.unseen = ""
        if len(self._looks) > 1:
            self._on_look(*self._looks[-2:])


def watched(looks: Sequence[Look], moments: Sequence[Moment], open_s: float) -> Watched:
    """The means and the course of what was seen.

    Args:
        open_s: what `at_s` of the series counts from.
    """
    gpu = {name: fmean(getattr(each, name) for each in moments) for name in _of_gpu()} if moments else {}
    gpu_series = _thin({name: [getattr(each, name) for each in moments] for name in ("at_s", *_of_gpu())}, open_s)
    if len(looks) < 2:
        return Watched(gpu=gpu, gpu_series=gpu_series)
    first, last = looks[0], looks[-1]
    return Watched(
        cpu_percent_of={name: 100 * used for name, used in last.cpu_share_since(first).items()},
        machine_cpu_percent=100 * last.machine_cpu_since(first),
        rss_mib_of={name: used / _MIB for name, used in last.rss_bytes.items()},
        lane_busy=last.lane_busy_since(first),
        in_house=sum(last.in_stage_since(first, stage) for stage in STAGES),
        queueing=last.in_stage_since(first, "queue"),
        batch_fill=last.fill_since(first),
        useful=last.useful_since(first),
        stages_ms={stage: last.stage_ms_since(first, stage) for stage in STAGES},
        gpu=gpu,
        series=_thin(_series(looks), open_s),
        gpu_series=gpu_series,
    )


def _series(looks: Sequence[Look]) -> Series:
    pairs = list(pairwise(looks))
    return {
        "at_s": [after.at_s for _, after in pairs],
        "img_s": [after.img_s_since(before) for before, after in pairs],
        "lane_busy": [after.lane_busy_since(before) for before, after in pairs],
        "queueing": [after.in_stage_since(before, "queue") for before, after in pairs],
        "batch_fill": [after.fill_since(before) for before, after in pairs],
        "slots_in_use": [after.slots_in_use for _, after in pairs],
        "cpu_percent": [100 * sum(after.cpu_share_since(before).values()) for before, after in pairs],
        "rss_mib": [sum(after.rss_bytes.values()) / _MIB for _, after in pairs],
    }


def _of_gpu() -> Iterable[str]:
    return Moment._fields[1:]


def _thin(series: Series, open_s: float) -> Series:
    """Every so many points only, and times from the start of the measurement."""
    step = -(-len(series["at_s"]) // _MOST_POINTS) or 1
    thin = {name: values[::step] for name, values in series.items()}
    return thin | {"at_s": [at_s - open_s for at_s in thin["at_s"]]}
