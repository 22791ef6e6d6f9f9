"""The ladder as a whole: real processes, real gRPC, real JPEGs, a tiny model. It proves nothing about speed."""

import io
import json
from collections import Counter
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.generator import Load
from bench.ladder.__main__ import main
from bench.ladder.measure import Bench, Row, Timing, plain_row, with_profile
from bench.ladder.report import findings, print_rows, speedup
from bench.ladder.rungs import RUNGS, SERVED, SEVERAL, habits_at, pick_rungs
from bench.ladder.workers import Launch, Worker
from bench.live import Live
from bench.mix import mix_images
from bench.rungs import draw_records
from bench.service import Service, ServiceError
from bench.summary import COLUMNS, to_samples
from bench.trace import TraceSummary
from tests.serving import calling

TINY = "tests.tiny_model:Tiny"


def row(number: int, callers: int, qps: float, **figures: Any) -> Row:
    incident = RUNGS[number].incident
    told = asdict(incident) if incident and callers == 1 else None
    return Row(
        number, RUNGS[number].name, "resnet50", callers, qps, 1e3 / qps, 1.0, 1.0, 90.0, incident=told, **figures
    )


def test_each_rung_breaks_one_habit_and_keeps_the_rest_broken() -> None:
    left = [sum(asdict(habits_at(rung.number)).values()) for rung in RUNGS if rung.number < SERVED]
    assert left == [5, 4, 3, 2, 1, 0]
    assert habits_at(1).augments
    assert not habits_at(1).syncs
    assert habits_at(4).eager
    assert not habits_at(4).transforms_on_cpu


def test_rungs_are_climbed_from_the_bottom() -> None:
    assert [rung.number for rung in pick_rungs([7, 0, 3])] == [0, 3, 7]
    with pytest.raises(ValueError, match="no rung 8"):
        pick_rungs([0, 8])


def test_the_incidents_qps_is_one_request_in_flight() -> None:
    for rung in RUNGS:
        if rung.incident:
            assert rung.incident.qps == pytest.approx(1000 / rung.incident.wall_ms, abs=1.0)


LAUNCH = Launch("resnet50", "none", "cpu", 8)


def test_only_the_last_two_rungs_are_this_service() -> None:
    launch = Launch("resnet50", "none", "cpu", 8, 3, ["--lanes", "2"])
    served, several, legacy = (launch.command(RUNGS[number], 9200) for number in (SERVED, SEVERAL, 5))
    assert several[1:9] == ["-m", "server", "--frontends", "3", "--frontend-port", "0", "--admin-port", "9200"]
    assert several[-2:] == ["--lanes", "2"]
    assert "bench.ladder.served" in served
    assert served[-2:] == ["--lanes", "2"]
    assert "bench.ladder.legacy" in legacy
    assert "--lanes" not in legacy


def test_a_profile_is_set_against_the_pace_without_it() -> None:
    # 4 real images of 8 rows: 2 ms of kernels a batch, 20 ms of wall at the pace without the profiler.
    measured = replace(row(3, 32, 200.0), batch_fill=4.0)
    live = Live(TraceSummary(200, wall_ms=35.0, kernel_ms=2.0, kernels=240.0, launch_ms=33.0), batch_fill=4.1)
    profiled = with_profile(measured, live, LAUNCH)
    assert profiled.gpu_ms == pytest.approx(0.5)
    assert profiled.gpu_busy == pytest.approx(0.1)
    assert profiled.useful_busy == pytest.approx(0.05)
    assert profiled.gap_ms == pytest.approx(18.0)
    assert profiled.profiled_batches == 200
    assert profiled.verdict == "launch-bound"


def test_a_batch_that_is_not_padded_is_all_useful() -> None:
    live = Live(TraceSummary(200, wall_ms=10.0, kernel_ms=1.0), batch_fill=4.0)
    profiled = with_profile(replace(row(0, 32, 400.0), batch_fill=4.0), live, LAUNCH)
    assert profiled.useful_busy == profiled.gpu_busy == pytest.approx(0.1)


def test_this_service_pads_to_the_smallest_graph_that_holds_a_batch() -> None:
    assert LAUNCH.padded_rows(SERVED, 1.0) == 1
    assert LAUNCH.padded_rows(SERVED, 1.2) == LAUNCH.padded_rows(SEVERAL, 8.0) == 8
    chosen = replace(LAUNCH, server_args=("--graph-sizes", "4,2"))
    assert [chosen.padded_rows(SERVED, fill) for fill in (1.0, 2.0, 3.5, 5.0)] == [2, 2, 4, 8]
    assert replace(LAUNCH, server_args=("--graph-sizes", "")).padded_rows(SERVED, 1.0) == 8


def test_findings_name_the_gain_and_whatever_became_slower() -> None:
    rows = [row(0, 32, 100.0), row(1, 32, 96.0), row(2, 32, 80.0), row(5, 32, 600.0)]
    gain, slower = findings(rows)
    assert "6.0 times" in gain
    assert "rung 2" in slower
    assert speedup(rows) == 6.0
    assert speedup(rows[:2]) is None


def test_the_tables_show_the_incident_beside_one_caller() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    print_rows(console, [row(0, 1, 50.0, gpu_busy=0.13, gpu_ms=4.0), row(0, 32, 60.0)])
    text = console.export_text()
    assert "50.0 [12]" in text
    assert "13% [12%]" in text


def test_the_picture_is_drawn_beside_the_record(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.ladder import picture

    rows = [asdict(row(number, callers, 100.0 * callers, gpu_busy=0.2)) for number in (0, 1) for callers in (1, 32)]
    record = tmp_path / "ladder.json"
    record.write_text(json.dumps({"device": "x", "date": "y", "conditions": {}, "results": {"rungs": rows}}))
    assert draw_records(picture.draw, [str(record)]) == 0
    assert (tmp_path / "ladder.png").stat().st_size > 10_000
    assert (tmp_path / "ladder.svg").stat().st_size > 10_000


def test_legacy_and_served_rungs_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--models", TINY, "--check-model", TINY, "--rungs", "3,4,6,7", "--callers", "8", "--device", "cpu"]
    short = ["--frontends", "2", "--seconds", "0.7", "--warmup-seconds", "0.3", "--no-record", "--", "--no-compile"]
    assert main([*args, *short]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["bench"] == "ladder"
    assert record["conditions"]["rungs_left_out_without_a_gpu"] == [4]
    rungs = record["results"]["rungs"]
    assert [(rung["number"], rung["callers"]) for rung in rungs] == list(product((3, 6, 7), (1, 8)))
    for rung in rungs:
        assert rung["qps"] > 0
        assert rung["wall_ms"] == pytest.approx(1000 / rung["qps"], rel=1e-3)
        assert rung["gpu_busy"] is None
        assert rung["settle_s"] > 0
        assert rung["top1_agreement"] >= 0.95
    assert record["results"]["failed"] == {}
    several = rungs[-1]
    assert several["connections"] >= 2, "of each process, one to each frontend"
    assert {"engine-0", "frontend-0", "frontend-1"} < several["cpu_percent_of"].keys()
    assert several["host_cpu_percent"] == pytest.approx(sum(several["cpu_percent_of"].values()), rel=1e-3)
    assert rungs[0]["connections"] == rungs[2]["connections"] == 1


def test_the_engine_of_several_processes_is_profiled_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # The callers beside the bench's own go on until the profile is there, however late it begins.
    monkeypatch.setattr("bench.ladder.measure._FIRST_START_S", 0.0)
    launch = Launch(TINY, "none", "cpu", 8, 1, ["--no-compile"])
    with (
        Worker(RUNGS[SEVERAL], launch) as worker,
        Bench("small", (4,), 1, Timing(0.2, 0.5, 50, 10.0), 0) as bench,
        calling(worker.target, mix_images("small")[0]),
    ):
        (measured,) = bench.measure(worker, RUNGS[SEVERAL], launch)
        assert {"engine-0", "frontend-0"} < measured.cpu_percent_of.keys()
    # Without a GPU the forwards of the engine stand in the place of kernels: a frontend has none.
    assert measured.profiled_batches >= 5
    assert measured.gpu_busy is not None
    assert 0 < measured.gpu_busy < 1


def test_the_cpu_of_several_processes_is_told_by_role() -> None:
    used = {"engine-0": 70.0, "frontend-0": 80.0, "frontend-1": 90.0}
    console = Console(width=160, record=True, file=io.StringIO())
    print_rows(console, [row(7, 32, 3000.0, cpu_percent_of=used)])
    assert "1 x engine 70%, 2 x frontend 85%" in console.export_text()


def test_a_rung_that_does_not_start_is_recorded_as_failed(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--models", f"{TINY},tests.nowhere:factory", "--rungs", "2", "--check-model", "none", "--device", "cpu"]
    assert main([*args, "--callers", "2", "--seconds", "0.3", "--warmup-seconds", "0.1", "--no-record"]) == 1
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [rung["model"] for rung in record["results"]["rungs"]] == [TINY, TINY]
    assert "No module named" in record["results"]["failed"]["tests.nowhere:factory, rung 2"]


def test_an_unknown_rung_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rungs", "9", "--device", "cpu"]) == 1
    assert "no rung 9" in capsys.readouterr().out


def test_a_load_becomes_a_row() -> None:
    samples = to_samples([[10.0] * (len(COLUMNS) - 1) + [2.0]] * 40)
    load = Load(samples, seconds=2.0, errors=Counter(), cpu_s=0.1, server_cpu_s=3.0)
    found = plain_row(RUNGS[0], "resnet50", 1, load)
    assert (found.qps, found.wall_ms, found.batch_fill, found.host_cpu_percent) == (20.0, 50.0, 2.0, 150.0)
    assert found.incident == {"gpu_ms": 10, "wall_ms": 82, "gpu_util": 0.12, "qps": 12}


def test_what_went_wrong_first_is_told_and_not_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_badly(self: Service, *_: object) -> None:
        raise ServiceError("did not end")

    monkeypatch.setattr(Service, "__exit__", ends_badly)
    monkeypatch.setattr(Worker, "_clean_up", lambda self: None)
    worker = Worker(RUNGS[0], Launch("resnet50", "none", "cpu", 8))
    worker.__exit__(ValueError, ValueError("first"), None)
    with pytest.raises(ServiceError, match="did not end"):
        worker.__exit__(None)
    worker._folder.cleanup()
