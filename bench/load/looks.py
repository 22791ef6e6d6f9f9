"""One look at a service's metrics page, and what happened between two."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from bench.metrics_reading import Reading, read_metrics
from bench.summary import STAGES

_BUSY = "warmlane_lane_busy_seconds_total"
_CPU = "warmlane_process_cpu_seconds_total"
_RSS = "warmlane_process_resident_bytes"


@dataclass(frozen=True, slots=True)
class Look:
    """What the page said at `at_s`, in seconds of CLOCK_MONOTONIC. Counters, but for memory, slots and engines.

    Attributes:
        images: answered OK.
        lane_busy_s: of all engines.
        stage_s: of all images, by stage.
        fill_images, fill_batches: real images in all batches, and the batches.
        padding_rows: computed without an image.
        cpu_s: by process.
        rss_bytes: by process.
        slots_in_use: images on their way.
        engines: that answer.
        machine_cpu_s: of everything that runs on this machine, and what its host has taken away.
    """

    at_s: float
    images: float
    lane_busy_s: float
    stage_s: Mapping[str, float]
    fill_images: float
    fill_batches: float
    padding_rows: float
    cpu_s: Mapping[str, float]
    rss_bytes: Mapping[str, float]
    slots_in_use: float
    engines: float
    machine_cpu_s: float = 0.0

    def img_s_since(self, before: "Look") -> float:
        """Images answered per second."""
        return (self.images - before.images) / self._seconds_since(before)

    def lane_busy_since(self, before: "Look") -> float:
        """Share of the time in which a lane ran, mean of the engines. Counted when a batch ends, so never over 1."""
        busy_s = self.lane_busy_s - before.lane_busy_s
        return min(1.0, busy_s / self._seconds_since(before) / max(self.engines, 1))

    def in_stage_since(self, before: "Look", stage: str) -> float:
        """Mean images in a stage, by Little's law: those answered meanwhile, times the time that they spent there."""
        return (self.stage_s[stage] - before.stage_s[stage]) / self._seconds_since(before)

    def stage_ms_since(self, before: "Look", stage: str) -> float:
        """Mean milliseconds of an image in a stage; NaN if none was answered."""
        images = self.images - before.images
        return 1e3 * (self.stage_s[stage] - before.stage_s[stage]) / images if images else math.nan

    def fill_since(self, before: "Look") -> float:
        """Mean images in a batch; NaN if there was none."""
        batches = self.fill_batches - before.fill_batches
        return (self.fill_images - before.fill_images) / batches if batches else math.nan

    def useful_since(self, before: "Look") -> float:
        """Share of the computed rows that were real images; NaN if there was none."""
        images = self.fill_images - before.fill_images
        rows = images + self.padding_rows - before.padding_rows
        return images / rows if rows else math.nan

    def cpu_share_since(self, before: "Look") -> dict[str, float]:
        """Of one core, by process that lived at both looks."""
        seconds = self._seconds_since(before)
        both = self.cpu_s.keys() & before.cpu_s.keys()
        return {name: (self.cpu_s[name] - before.cpu_s[name]) / seconds for name in sorted(both)}

    def machine_cpu_since(self, before: "Look") -> float:
        """Cores that were busy on this machine, with whatever."""
        return (self.machine_cpu_s - before.machine_cpu_s) / self._seconds_since(before)

    def _seconds_since(self, before: "Look") -> float:
        return self.at_s - before.at_s


def look(url: str) -> Look:
    """Read the page now.

    Raises:
        MetricsError: it cannot be read.
    """
    return to_look(read_metrics(url), time.monotonic(), _machine_cpu_s())


def _machine_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)  # those that follow are counted in the first already


def to_look(reading: Reading, at_s: float, machine_cpu_s: float = 0.0) -> Look:
    """What a reading of the page says."""

    def value(name: str, label: str = "") -> float:
        return reading.get((name, label), 0.0)

    def by_process(name: str) -> dict[str, float]:
        return {label: value for (found, label), value in reading.items() if found == name}

    return Look(
        at_s=at_s,
        images=value("warmlane_images_total", "OK"),
        lane_busy_s=value(_BUSY),
        stage_s={stage: value("warmlane_stage_seconds_sum", stage) for stage in STAGES},
        fill_images=value("warmlane_batch_fill_sum"),
        fill_batches=value("warmlane_batch_fill_count"),
        padding_rows=value("warmlane_padding_rows_total"),
        cpu_s=by_process(_CPU),
        rss_bytes=by_process(_RSS),
        slots_in_use=value("warmlane_slots_in_use"),
        engines=value("warmlane_engines_warm"),
        machine_cpu_s=machine_cpu_s,
    )
