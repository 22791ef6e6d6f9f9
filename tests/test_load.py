"""The load test as a whole: real processes, real gRPC, real JPEGs, a tiny model, its report in a real browser.

It proves nothing about speed.
"""

import contextlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bench.load.__main__ import main
from bench.load.formula import OUTSIDE, TERMS
from bench.load.options import SCENARIOS, parse
from bench.load.reference import first_answers, own_reference
from bench.load.watch import Watch
from bench.report.page import newest_ladder, render
from bench.report.plots import over_time, waterfalls
from tests.browser import needs_browser, opened
from tests.fake_service import CAT, FakeClassifier, serving
from warmlane.v1 import classifier_pb2 as pb

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="serves on the CPU")

TINY = ("--model", "tests.tiny_model:Tiny", "--no-compile", "--threads", "1")
ALL = "single,closed,batch,stream,open,sweep,soak"
QUICK = ("--seconds", "1.2", "--warmup-seconds", "0.3", "--step-seconds", "0.5", "--minutes", "0.02")
PLOTS = ("waterfall", "latency", "time", "ladder")


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    report: Path

    @property
    def told(self) -> str:
        """What people read: all but the record."""
        return self.output.partition("\n{")[0]

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return record

    def runs(self, scenario: str) -> list[dict[str, Any]]:
        return [run for run in self.record["results"]["runs"] if run["scenario"] == scenario and not run["step"]]


def load_test(folder: Path, *args: str) -> Outcome:
    report = folder / "report.html"
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(["--no-record", "--report", str(report), *args])
    return Outcome(code, output.getvalue(), report)


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    """What is measured besides the scenarios takes moments. How a sweep searches, `test_load_parts` proves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.load.__main__._CALIBRATION_SECONDS", 0.1)
        patch.setattr("bench.load.session.Watch", partial(Watch, period_s=0.2))
        patch.setattr("bench.load.sweep._MOST_STEPS", 1)
        patch.setattr("bench.load.sweep._MOST_CONFIRMATIONS", 1)
        yield


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    args = ("--scenario", ALL, "--mix", "small", "--callers", "4", "--rate", "20", "--no-ceiling", *QUICK, "--", *TINY)
    for _ in range(3):
        outcome = load_test(tmp_path_factory.mktemp("load"), *args)
        # A run in which something else kept the callers from calling is invalid, as it should be.
        if outcome.code == 0 or "the generator missed its rate" not in outcome.told:
            break
    return outcome


def test_every_scenario_is_measured_and_valid(outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.told
    assert outcome.record["bench"] == "load"
    assert set(ALL.split(",")) == set(SCENARIOS)
    for scenario in ("single", "closed", "batch", "stream", "open", "soak"):
        (run,) = outcome.runs(scenario)
        assert run["valid"], run
        assert run["img_s"] > 5
        assert len(run["rounds"]["p99_ms"]) == 5


def test_every_answer_was_checked_against_the_reference(outcome: Outcome) -> None:
    conditions = outcome.record["conditions"]
    assert "float32 on the CPU" in conditions["answers_held_against"]
    assert 0 <= conditions["swapped_answers_noticed"] <= 1
    for scenario in ("single", "batch", "stream", "open"):
        (run,) = outcome.runs(scenario)
        # Those of the warm-up are checked too.
        assert run["checked"] >= run["calls"] > 0
        assert run["top1_agreement"] > 0.9
        assert "WRONG_ANSWER" not in run["errors"]


def test_the_terms_are_the_wall_of_callers_who_wait(outcome: Outcome) -> None:
    for scenario in ("single", "closed", "batch", "stream"):
        (run,) = outcome.runs(scenario)
        assert tuple(run["terms_ms"]) == TERMS
        assert run["accounted"] == pytest.approx(1.0, abs=0.05), scenario


def test_the_service_is_watched(outcome: Outcome) -> None:
    (run,) = outcome.runs("closed")
    assert run["cpu_percent_of"]["server"] > 5
    assert run["rss_mib_of"]["server"] > 100
    assert 0 < run["lane_busy"] <= 1
    assert 0 <= run["others_cpu_percent"] <= 100 * (psutil.cpu_count() or 1)
    assert len(run["series"]["at_s"]) >= 2
    assert outcome.record["conditions"]["not_seen"] == ["NVML: the service computes on a CPU"]
    assert "Not seen: NVML" in outcome.told


def test_the_sweep_and_the_soak_say_what_they_found(outcome: Outcome) -> None:
    results = outcome.record["results"]
    assert results["slo"]["slo_ms"] == 300
    steps = [run for run in results["runs"] if run["scenario"] == "sweep" and run["step"]]
    assert len(steps) >= 3
    # On a machine that is busy otherwise there may be none.
    confirmed = [run["rate"] for run in outcome.runs("sweep")] or [None]
    assert confirmed == [results["slo"]["rate"]]
    assert set(results["drifts"]) == {"p50_ms", "p99_ms", "img_s", "rss_mib"}
    assert "Highest rate whose p99 stays within 300 ms" in outcome.told
    assert "an hour after the first fifth" in outcome.told


def test_the_report_needs_nothing_from_outside(outcome: Outcome) -> None:
    page = outcome.report.read_text()
    assert "<script" not in page
    outside = [link for link in re.findall(r'(?:src|href)="([^"#][^"]*)"', page) if not link.startswith("data:")]
    assert outside == []
    assert "@import" not in page
    assert len(page) < 2**20


@needs_browser()
def test_the_report_in_a_browser(outcome: Outcome, tmp_path: Path) -> None:
    with opened(outcome.report) as found:
        assert found.complaints == []
        assert found.requests == []
        assert found.page.title().startswith("Load test: tests.tiny_model:Tiny on cpu")
        for plot in PLOTS:
            width, height = found.size(f"#{plot} svg")
            assert width > 800, plot
            assert height > 200, plot
        rows = found.page.locator("#measurements tr")
        assert rows.count() == 1 + sum(not run["step"] for run in outcome.record["results"]["runs"])
        assert found.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "it is not too wide"
        assert found.page.locator("text=NaN").count() == 0
        assert len(found.page.screenshot(full_page=True, path=tmp_path / "report.png")) > 50_000


@needs_browser()
def test_a_script_that_fails_would_be_noticed(outcome: Outcome, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(outcome.report.read_text().replace("</body>", "<script>nothing()</script></body>"))
    with opened(broken) as found:
        assert any("nothing is not defined" in complaint for complaint in found.complaints)


class Forgetful(FakeClassifier):
    """Answers as the fake service, but after its first calls with another class."""

    def Classify(self, request: pb.ClassifyRequest, context: Any) -> pb.ClassifyResponse:  # noqa: N802
        answer = super().Classify(request, context)
        if len(self.requests) > 10:
            answer.predictions[0].index = 7
        return answer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    (images / "one.jpg").write_bytes(b"cat one")
    (images / "two.jpg").write_bytes(b"cat two")
    (images / "three.txt").write_bytes(b"fail INVALID_ARGUMENT")
    return images


def foreign(folder: Path, target: str, *args: str) -> Outcome:
    quick = ("--seconds", "0.5", "--warmup-seconds", "0.2", "--processes", "1")
    return load_test(folder.parent, "--target", target, "--images", str(folder), *quick, *args)


def test_a_server_that_runs_already_and_a_folder(folder: Path) -> None:
    with serving(FakeClassifier()) as target:
        outcome = foreign(folder, target, "--scenario", "single")
    assert outcome.code == 0, outcome.told
    conditions = outcome.record["conditions"]
    assert outcome.record["bench"] == "load-single"
    assert (conditions["mix"], conditions["files"], conditions["files_refused"]) == ("folder images", 3, 1)
    assert "own first answers" in conditions["answers_held_against"]
    assert any(line.startswith("metrics: no --metrics") for line in conditions["not_seen"])
    assert outcome.record["results"]["lane_busy"] is None
    assert "Engine busy over time" not in outcome.report.read_text()


def test_answers_that_change_make_a_run_invalid(folder: Path) -> None:
    with serving(Forgetful()) as target:
        outcome = foreign(folder, target, "--scenario", "single")
    assert outcome.code == 1
    assert outcome.record["results"]["runs"][0]["errors"]["WRONG_ANSWER"] > 0
    assert "This run is invalid" in outcome.report.read_text()


def test_a_generator_that_misses_its_rate_makes_a_run_invalid(folder: Path) -> None:
    with serving(FakeClassifier()) as target:
        outcome = foreign(folder, target, "--scenario", "open", "--rate", "20000", "--seconds", "0.05")
    assert outcome.code == 1
    assert "missed its rate by" in outcome.told


def test_nobody_at_the_target_is_one_line(folder: Path) -> None:
    outcome = foreign(folder, "127.0.0.1:9", "--scenario", "single")
    assert outcome.code == 1
    assert "no measurement: UNAVAILABLE" in outcome.told


def test_no_file_that_can_be_sent_is_one_line(folder: Path) -> None:
    for path in folder.glob("*.jpg"):
        path.unlink()
    with serving(FakeClassifier()) as target:
        outcome = foreign(folder, target, "--scenario", "single")
    assert outcome.code == 1
    assert "none of the files is an image" in outcome.told


def test_a_model_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    outcome = load_test(tmp_path, "--scenario", "single", "--", "--model", "nonsense")
    assert outcome.code == 1
    assert "no measurement: unknown model 'nonsense'" in outcome.output


def test_several_frontends_get_enough_connections() -> None:
    assert parse(["--processes", "2", "--", "--frontends", "3"]).connections_each == 3
    assert parse(["--processes", "2"]).connections_each == 1
    assert parse(["--target", "ipv4:127.0.0.1:1,127.0.0.1:2"]).connections_each == 2
    assert parse(["--connections", "5", "--", "--frontends", "3"]).connections_each == 5


def test_what_is_skipped_cannot_be_checked() -> None:
    found = own_reference(["--skip-decode"], "none")
    assert found.answers == ()
    assert "does not decode" in found.source


def test_first_answers_are_one_a_file(folder: Path) -> None:
    with serving(FakeClassifier()) as target:
        found = first_answers(target, str(folder), "fp32")
    assert [each and each.top1 for each in found.answers] == [281, None, 281]
    assert found.answers[0]
    assert found.answers[0].scores == {281: pytest.approx(CAT.predictions[0].score)}


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--scenario", "closed,nonsense"], "no scenario 'nonsense'"),
        (["--images", "/nowhere"], "no such folder"),
        (["--target", "localhost:1", "--", "--threads", "2"], "not for the one at --target"),
        (["--callers", "0"], "--callers: '0' is not a number from 1 on"),
        (["--seconds", "-1"], "--seconds: '-1' is not a number from 0 on"),
        (["--rate", "0"], "--rate: must be more than 0"),
        (["--slo-ms", "nan"], "--slo-ms: 'nan' is not a number from 0 on"),
    ],
)
def test_a_wrong_command_line_is_one_line(args: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(args)
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_names_that_look_like_html_are_not(outcome: Outcome) -> None:
    record = outcome.record
    record["conditions"]["model"] = "<b onclick=x>"
    assert "<b onclick" not in render(record)


def test_nvml_is_drawn_beside_the_lanes(outcome: Outcome) -> None:
    runs = outcome.record["results"]["runs"]
    without = over_time(runs)
    seen = {"at_s": [0.0, 1.0], "util_percent": [70.0, 75.0]}
    assert len(over_time([run | {"gpu_series": seen} for run in runs])) > len(without)


def test_a_term_below_zero_is_drawn_as_well() -> None:
    """As of a service whose own timings are longer than its callers wait."""
    terms = dict.fromkeys(TERMS, 1.0) | {OUTSIDE: -6.99}
    assert "<svg" in waterfalls([{"scenario": "single", "label": "one caller", "step": False, "terms_ms": terms}])


def test_the_newest_ladder_is_shown(tmp_path: Path) -> None:
    for date in ("2026-01-02", "2026-01-01"):
        (tmp_path / f"ladder_gpu_{date}_x.json").write_text(json.dumps({"date": date, "results": {"rungs": [1]}}))
    (tmp_path / "ladder_gpu_2027-01-01_x.json").write_text(json.dumps({"date": "2027", "results": {"rungs": []}}))
    found = newest_ladder(tmp_path)
    assert found
    assert found["date"] == "2026-01-02"
    assert newest_ladder(tmp_path / "nothing") is None
