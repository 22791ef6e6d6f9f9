"""Comparing records, and holding a run against what is recorded. The records are made up; one run is real."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import compare, regress
from bench.calibration import Calibration, work
from bench.compare import Change, changes, differences
from bench.record import Record, new_record
from pipeline.cpus import available_cpus

TINY = ("--model", "tests.tiny_model:Tiny", "--no-compile", "--threads", "1")


def record(img_s: list[float], units_s: float = 100.0, **conditions: Any) -> dict[str, Any]:
    run = {
        "scenario": "closed",
        "label": "16 callers",
        "step": False,
        "rounds": {"img_s": img_s, "p50_ms": [10.0, 10.1, 10.2, 10.3, 10.4], "p99_ms": [20.0, 21.0, 22.0, 23.0, None]},
        "batch_fill": 7.5,
        "lane_busy": None,
    }
    return {
        "conditions": {"mix": "small", **conditions},
        "versions": {"torch": "2.11"},
        "results": {"runs": [run, run | {"step": True}], "valid": True, "calibration_units_s": [units_s, units_s]},
    }


def found(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Change]:
    return {change.name: change for change in changes(before, after)}


STEADY = [100.0, 101.0, 102.0, 103.0, 104.0]


def test_a_change_beyond_all_rounds_is_one() -> None:
    change = found(record(STEADY), record([img_s * 1.1 for img_s in STEADY]))["img_s"]
    assert change.verdict == "better"
    assert change.percent == pytest.approx(10.0)
    assert found(record(STEADY), record([img_s * 0.9 for img_s in STEADY]))["img_s"].verdict == "worse"


def test_a_change_within_the_rounds_is_noise() -> None:
    noisy = [80.0, 90.0, 110.0, 120.0, 130.0]
    change = found(record(STEADY), record(noisy))["img_s"]
    assert change.percent > 3
    assert change.verdict == "within noise"


def test_latency_is_better_when_it_falls() -> None:
    slower = record(STEADY)
    slower["results"]["runs"][0]["rounds"]["p50_ms"] = [11.0, 11.0, 12.0, 12.0, 13.0]
    assert found(record(STEADY), slower)["p50_ms"].verdict == "worse"
    assert found(slower, record(STEADY))["p50_ms"].verdict == "better"


def test_a_slower_machine_is_not_a_slower_service() -> None:
    changed = found(record(STEADY, units_s=100.0), record([img_s / 2 for img_s in STEADY], units_s=50.0))
    assert changed["img_s"].verdict == "worse"
    assert changed["img_s per calibration unit"].verdict == "within noise"


def test_few_rounds_tell_nothing() -> None:
    assert Change("closed", "img_s", [1.0, 1.0, 1.0], [9.0] * 5).verdict == "too few rounds to tell"
    assert found(record(STEADY), record(STEADY))["batch_fill"].verdict == "too few rounds to tell"


def test_other_conditions_are_told() -> None:
    after = record(STEADY, mix="phone", callers=4)
    after["results"]["valid"] = False
    told = list(differences(record(STEADY), after))
    assert "mix: small against phone" in told
    assert "callers: - against 4" in told
    assert "the second record is of an invalid run" in told


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, content in zip(paths, (record(STEADY), record([50.0] * 5, mix="phone")), strict=True):
        path.write_text(json.dumps(content))
    assert compare.main([str(path) for path in paths]) == 0
    output = capsys.readouterr().out
    assert "worse" in output
    assert "mix: small against phone" in output
    assert compare.main([str(paths[0])]) == 2


def test_records_without_rounds_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"conditions": {}, "versions": {}, "results": {"img_s": 5}}))
    assert compare.main([str(old), str(old)]) == 2
    assert "nothing to compare" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("<html>", "not a record"),
        ("[1]", "not a record"),
        ('{"bench": "load"}', "not a record"),
    ],
)
def test_what_is_no_record_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, words: str
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(record(STEADY)))
    if content is not None:
        bad.write_text(content)
    assert compare.main([str(good), str(bad)]) == 2
    said = capsys.readouterr().out.replace("\n", "")
    assert "bad.json" in said
    assert words in said


def test_each_round_is_held_against_the_calibrations_around_it() -> None:
    assert regress.ratios([100.0, 50.0], [10.0, 10.0, 0.0]) == [10.0, 10.0]


def test_a_unit_is_the_same_work_each_time() -> None:
    assert work(0.0) > 0
    with Calibration() as calibration:
        paces = [calibration.units_s(0.3) for _ in range(3)]
    assert max(paces) < 5 * min(paces), paces


@pytest.mark.skipif(torch.cuda.is_available(), reason="serves on the CPU")
def test_a_run_is_recorded_and_later_ones_are_held_against_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_WARM_UP_S", "_CALIBRATION_S", "_QUIET_S"):
        monkeypatch.setattr(regress, name, 0.2)
    quick = ["--rounds", "2", "--seconds", "0.4", "--callers", "2"]
    (tmp_path / f"regress_cpu{available_cpus()}_2020-01-01_old.json").write_text("{}")
    assert regress.main([*quick, "--record", "--", *TINY], tmp_path) == 0
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert kept["results"]["ratio"]["median"] > 0
    assert len(kept["results"]["rounds"]["img_s"]) == 2

    # Far faster than this machine: whatever the next run makes is a drop.
    faster = copy.deepcopy(kept)
    faster["results"]["ratio"] = {name: 100 * value for name, value in kept["results"]["ratio"].items()}
    path.write_text(json.dumps(faster))
    assert regress.main([*quick, "--", *TINY], tmp_path) == 1
    assert "more than 10%" in capsys.readouterr().out


@pytest.mark.parametrize(("now", "drop"), [(0.95, 0.05), (0.85, 0.15), (1.2, -0.2)])
def test_a_drop_is_of_the_median_ratio(now: float, drop: float) -> None:
    then = {"ratio": {"median": 1.0, "low": 0.9, "high": 1.1}}
    assert regress.drop({"ratio": {"median": now}}, then) == pytest.approx(drop)


@pytest.mark.parametrize(
    ("ratio", "changed", "code", "told"),
    [
        (0.95, {}, 0, "no drop of over 10%"),
        (0.85, {}, 1, "slower by 15.0%, more than 10%"),
        (0.85, {"mix": "phone"}, 1, "not comparable: mix was small, is phone"),
        (2.0, {}, 0, "no drop"),
    ],
)
def test_a_verdict(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    ratio: float,
    changed: dict[str, Any],
    code: int,
    told: str,
) -> None:
    """On made-up measurements."""
    chosen = {"machine": "m", "mix": "small", "callers": 16, "model": "x", "server_args": []}

    def measured(ratio: float, **changed: Any) -> Record:
        figures = {"ratio": {"median": ratio, "low": 0.99 * ratio, "high": 1.01 * ratio}, "others_cpu_percent": 0.0}
        return new_record("regress", "cpu", chosen | changed | {"machine": "m"}, figures)

    measured(1.0).write(tmp_path)
    monkeypatch.setattr(regress, "_measure", lambda console, args: measured(ratio, **changed))
    assert regress.main([], tmp_path) == code
    assert told in capsys.readouterr().out


def test_nothing_recorded_is_said_and_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = new_record("regress", "cpu", {}, {"ratio": {"median": 1.0}, "others_cpu_percent": 90.0})
    monkeypatch.setattr(regress, "_measure", lambda console, args: measured)
    assert regress.main([], tmp_path) == 0
    told = capsys.readouterr().out
    assert "nothing is recorded" in told
    assert "Others kept the CPU busy" in told
