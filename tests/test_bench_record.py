import json
import re
from pathlib import Path

import pytest

from bench.record import Record, device_word, new_record
from pipeline.cpus import available_cpus

RECORD = Record(
    bench="load-closed",
    device="cpu2",
    date="2026-11-30",
    commit="0123abc",
    versions={"python": "3.11.7"},
    conditions={"callers": 16},
    results={"img_s": 123.456789, "stages_ms": {"decode": 0.00123456789}, "rounds": [1.23456789, 2]},
)


def test_a_record_is_written_under_its_bench_device_date_and_commit(tmp_path: Path) -> None:
    path = RECORD.write(tmp_path / "results")
    assert path.name == "load-closed_cpu2_2026-11-30_0123abc.json"
    found = json.loads(path.read_text())
    assert list(found) == ["bench", "device", "date", "commit", "versions", "conditions", "results"]
    assert found["results"] == {"img_s": 123.46, "stages_ms": {"decode": 0.0012346}, "rounds": [1.2346, 2]}


def test_the_line_is_one_line_with_the_same_content(tmp_path: Path) -> None:
    assert "\n" not in RECORD.line()
    assert json.loads(RECORD.line()) == json.loads(RECORD.write(tmp_path).read_text())


def test_what_could_not_be_measured_is_null() -> None:
    record = new_record("load", "cpu", {}, {"p50_ms": float("nan")})
    assert json.loads(record.line())["results"] == {"p50_ms": None}


@pytest.mark.parametrize(("name", "word"), [("cpu", f"cpu{available_cpus()}"), ("NVIDIA H200", "nvidia-h200")])
def test_device_words_fit_into_file_names(name: str, word: str) -> None:
    assert device_word(name) == word


def test_a_new_record_says_when_with_what_and_on_what() -> None:
    record = new_record("load", "cpu", {"callers": 1}, {})
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date)
    assert re.fullmatch(r"[0-9a-f]+(-dirty)?|none", record.commit)
    assert {"python", "torch", "grpcio"} <= set(record.versions)
    assert record.conditions["callers"] == 1
    assert "cores" in record.conditions["machine"]
