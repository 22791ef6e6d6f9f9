"""The parts of the load test that compute: the sweep on a service of numbers, drift, looks at the metrics page."""

import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from bench.generator import Load, Plan, call
from bench.load.formula import TERMS, accounted, terms_ms
from bench.load.looks import to_look
from bench.load.results import rounds_of, share_within, summarize
from bench.load.soak import drift
from bench.load.sweep import Found, Point, highest_rate
from bench.load.watch import Watch, Watched, watched
from bench.metrics_reading import parse_metrics
from bench.nvml import Moment, Sampler
from bench.summary import STAGES, column, to_samples
from bench.tally import Window
from tests.serving import in_process
from tests.slow_model import solid


class Numbers:
    """A service that keeps the limit up to a rate, and what it was asked."""

    def __init__(self, capacity: float, generator_at_most: float = 1e9, confirmed_up_to: float = 1e9) -> None:
        self.capacity, self.generator_at_most, self.confirmed_up_to = capacity, generator_at_most, confirmed_up_to
        self.probed: list[float] = []

    def probe(self, rate: float) -> Point:
        self.probed.append(rate)
        return Point(rate, 1.0 if rate <= self.capacity else 0.5, generator_valid=rate <= self.generator_at_most)

    def confirm(self, rate: float) -> Point:
        return Point(rate, 1.0 if rate <= min(self.capacity, self.confirmed_up_to) else 0.5)

    def found(self, peak: float) -> Found:
        return highest_rate(peak, self.probe, self.confirm)


@pytest.mark.parametrize("peak", [60.0, 100.0, 160.0])
def test_the_sweep_comes_close_from_any_first_guess(peak: float) -> None:
    service = Numbers(capacity=100.0)
    found = service.found(peak)
    assert found.best
    assert 90 <= found.best.rate <= 100
    assert not found.held_back
    assert len(service.probed) <= 9


def test_a_rate_that_is_not_confirmed_is_not_the_result() -> None:
    found = Numbers(capacity=100.0, confirmed_up_to=90.0).found(100.0)
    assert found.best
    assert 80 <= found.best.rate <= 90
    assert Numbers(capacity=100.0, confirmed_up_to=10.0).found(100.0).best is None


def test_a_limit_that_is_never_kept_has_no_rate() -> None:
    assert Numbers(capacity=0.0).found(100.0) == Found(None, held_back=False)


def test_a_generator_that_cannot_go_on_is_told() -> None:
    found = Numbers(capacity=1000.0, generator_at_most=70.0).found(100.0)
    assert found.best
    assert found.best.rate <= 70
    assert found.held_back


def test_refused_calls_are_late_ones() -> None:
    samples = to_samples([[ms, *[0.0] * 9, 1.0] for ms in (10.0, 20.0, 30.0)])
    assert share_within(samples, 25.0, due=4) == 0.5


def test_memory_that_grows_drifts_and_noise_does_not() -> None:
    at_s = np.arange(0, 3600, 10.0)
    growing = drift(list(at_s), list(500 + 36 * at_s / 3600))
    assert growing.per_hour == pytest.approx(36, rel=0.01)
    assert growing.percent == pytest.approx(100 * 28.8 / 503.6, rel=0.05)
    steady = drift(list(at_s), list(500 + np.random.default_rng(1).normal(0, 5, len(at_s))))
    assert abs(steady.percent) < 1
    # What fills up at first is not a slope.
    filling = drift(list(at_s), list(500 - 100 * (at_s < 600)))
    assert filling.per_hour == pytest.approx(0, abs=1e-6)
    assert filling.percent == pytest.approx(20)


def test_drift_skips_slices_without_answers() -> None:
    assert drift([0, 1, 2, 3, 4], [5.0, float("nan"), 5.0, 5.0, 5.0]).percent == 0


def test_rounds_are_slices_of_the_window() -> None:
    samples = to_samples([[ms, 0.0, at_s, *[0.0] * 7, 1.0] for ms, at_s in ((1, 0.1), (2, 0.9), (9, 1.5))])
    found = rounds_of(Load(samples, 2.0, errors={}, cpu_s=0), 2)  # type: ignore[arg-type]
    assert found["img_s"] == [2.0, 1.0]
    assert found["p50_ms"] == [1.5, 9.0]


@pytest.fixture(scope="module")
def measured() -> Iterator[tuple[Load, dict[str, float]]]:
    """Callers who wait, and what the server itself has counted of the same answers, in seconds by stage."""
    names = [("warmlane_stage_seconds_sum", {"stage": stage}) for stage in STAGES]
    with in_process() as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.generator.mix_images", lambda name: [solid(40), solid(50)])
        before = [REGISTRY.get_sample_value(*name) or 0.0 for name in names]
        open_s = time.monotonic()
        # A level of 2 would hold its batch for 0.2 s; these take about a millisecond.
        load = call(Plan(server.target, callers=4, warmup_s=0, way="unary", seconds=2.0), Window(open_s, open_s + 2.0))
        REGISTRY.get_sample_value("warmlane_slots_in_use")
        after = [REGISTRY.get_sample_value(*name) or 0.0 for name in names]
        yield load, dict(zip(STAGES, np.subtract(after, before), strict=True))


def test_the_terms_are_the_callers_wall_time_within_5_percent(measured: tuple[Load, dict[str, float]]) -> None:
    load, _ = measured
    terms = terms_ms(load.samples)
    assert tuple(terms) == TERMS
    assert sum(terms.values()) == pytest.approx(column(load.samples, "latency").mean(), rel=1e-3)
    assert accounted(terms, load.samples, load.in_calls_s, 4, load.seconds) == pytest.approx(1.0, abs=0.05)


def test_a_term_that_is_left_out_is_missed_in_the_wall(measured: tuple[Load, dict[str, float]]) -> None:
    load, _ = measured
    terms = terms_ms(load.samples)
    largest = max(terms, key=lambda name: terms[name])
    without = {name: ms for name, ms in terms.items() if name != largest}
    assert accounted(without, load.samples, load.in_calls_s, 4, load.seconds) < 0.95


def test_the_terms_are_what_the_server_counts_itself(measured: tuple[Load, dict[str, float]]) -> None:
    load, counted_s = measured
    told_s = {stage: float(column(load.samples, stage).sum()) / 1e3 for stage in STAGES}
    # Calls that ended after the window are the server's alone: four at most of hundreds.
    assert sum(told_s.values()) == pytest.approx(sum(counted_s.values()), rel=0.05)
    assert told_s["decode"] == pytest.approx(counted_s["decode"], rel=0.05)


def test_a_run_whose_generator_missed_its_rate_is_invalid() -> None:
    samples = to_samples([[1.0] * 10 + [1.0]])
    samples[:, 3:9], samples[:, 9] = 0.0, 0.0
    plan = Plan("", rate=100.0)
    for sending_s, is_valid in ((0.99, True), (1.01, True), (1.03, False)):
        load = Load(samples, 1.0, errors={}, cpu_s=0, due=100, sending_s=sending_s)  # type: ignore[arg-type]
        assert summarize(load, plan, Watched(), 1)["valid"] is is_valid


PAGE = """
warmlane_images_total{{status="OK"}} {images}
warmlane_lane_busy_seconds_total {busy}
warmlane_engines_warm 2
warmlane_slots_in_use 5
warmlane_batch_fill_sum {images}
warmlane_batch_fill_count {batches}
warmlane_padding_rows_total {padding}
warmlane_stage_seconds_sum{{stage="queue"}} {queue}
warmlane_process_cpu_seconds_total{{role="engine",process="engine-0"}} {cpu}
warmlane_process_resident_bytes{{role="engine",process="engine-0"}} 2097152
"""


def test_two_looks_are_what_happened_between_them() -> None:
    looks = [
        to_look(parse_metrics(PAGE.format(images=0, busy=0, batches=0, padding=5, queue=0, cpu=1)), 100.0),
        to_look(parse_metrics(PAGE.format(images=80, busy=3, batches=20, padding=25, queue=6, cpu=3)), 102.0),
    ]
    found = watched(looks, [], open_s=100.0)
    assert found.lane_busy == pytest.approx(0.75), "3 s of two engines in 2 s"
    assert found.queueing == pytest.approx(3.0)
    assert found.batch_fill == pytest.approx(4.0)
    assert found.useful == pytest.approx(0.8), "80 images in 100 rows"
    assert found.cpu_percent_of == {"engine-0": 100.0}
    assert found.rss_mib_of == {"engine-0": 2.0}
    assert found.stages_ms["queue"] == pytest.approx(75.0)
    assert found.series["at_s"] == [2.0]
    assert found.series["img_s"] == [40.0]


def test_a_long_watch_is_thinned_for_plots() -> None:
    reading = parse_metrics(PAGE.format(images=1, busy=0, batches=1, padding=0, queue=0, cpu=1))
    found = watched([to_look(reading, float(at_s)) for at_s in range(1, 2000)], [], open_s=0.0)
    assert 100 < len(found.series["at_s"]) <= 240


class Page(BaseHTTPRequestHandler):
    """A metrics page whose counters grow by one at each look."""

    looks = 0

    def do_GET(self) -> None:
        Page.looks += 1
        page = PAGE.format(images=10 * Page.looks, busy=0, batches=Page.looks, padding=0, queue=0, cpu=Page.looks)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: Any) -> None:
        pass


def test_a_page_is_looked_at_again_and_again() -> None:
    seen = []
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        began_s = time.monotonic()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        with Watch(url, on_look=lambda before, after: seen.append(after), period_s=0.05) as watch:
            time.sleep(0.5)
            found = watch.between(began_s, time.monotonic())
        server.shutdown()
    assert len(seen) > 3
    assert found.batch_fill == pytest.approx(10)
    assert watch.unseen == ""


def test_a_page_that_cannot_be_read_is_one_line() -> None:
    with Watch("http://127.0.0.1:9/metrics", period_s=0.05) as watch:
        time.sleep(0.2)
    assert "could not be read" in watch.unseen
    assert "\n" not in watch.unseen
    assert watch.between(0, time.monotonic()).series == {}


def fake_nvml() -> SimpleNamespace:
    """NVML with one GPU whose figures never change. It proves what is asked for, not that a GPU answers."""
    return SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=73, memory=20),
        nvmlDeviceGetClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetMaxClockInfo=lambda handle, clock: 1980,
        nvmlDeviceGetPowerUsage=lambda handle: 412_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
    )


def test_nvml_is_part_of_what_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    began_s = time.monotonic()
    with Watch(gpu=Sampler()) as watch:
        time.sleep(0.7)
        found = watch.between(began_s, time.monotonic())
    expected = {"util_percent": 73, "memory_percent": 20, "sm_clock_mhz": 1980, "power_w": 412}
    assert found.gpu == pytest.approx(expected)
    assert len(found.gpu_series["at_s"]) >= 2
    assert set(expected) == set(Moment._fields[1:])
