"""CPU counts from the files that cgroups of both versions show."""

import os
from pathlib import Path

import pytest

from pipeline.cpus import available_cpus

ALLOWED = 8


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(ALLOWED)))


def write_v1(folder: Path, quota: str, period: str = "100000") -> None:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.mark.parametrize(
    ("content", "cpus"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("100001 100000\n", 2),
        ("100000 100000\n", 1),
        ("5000 100000\n", 1),
        ("1600000 100000\n", ALLOWED),
        ("20000 10000\n", 2),
        ("max 100000\n", ALLOWED),
        ("", ALLOWED),
        ("rubbish\n", ALLOWED),
    ],
)
def test_v2(tmp_path: Path, content: str, cpus: int) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [
        ("300000", "100000", 3),
        ("250000", "100000", 3),
        ("1000", "100000", 1),
        ("-1", "100000", ALLOWED),
        ("x", "y", ALLOWED),
    ],
)
def test_v1(tmp_path: Path, quota: str, period: str, cpus: int) -> None:
    write_v1(tmp_path, quota, period)
    assert available_cpus(tmp_path) == cpus


def test_v2_without_a_limit_leaves_it_to_v1(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    write_v1(tmp_path, "200000")
    assert available_cpus(tmp_path) == 2


def test_without_cgroups_the_mask_counts(tmp_path: Path) -> None:
    assert available_cpus(tmp_path) == ALLOWED
    assert available_cpus(tmp_path / "missing") == ALLOWED


def test_the_mask_is_a_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert available_cpus(tmp_path) == 1


def test_this_machine_has_some() -> None:
    assert 1 <= available_cpus() <= ALLOWED
