"""`bench/gpu.sh`: its steps and how it tells of them. What they measure needs a GPU."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "bench" / "gpu.sh"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"WARMLANE_PYTHON": sys.executable, "PYTEST_ADDOPTS": "--collect-only -q"}
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=120, env=environment)


def test_a_step_leaves_its_log(tmp_path: Path) -> None:
    ended = run(str(tmp_path / "new"), "tests")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "failed: none"
    assert "test_lanes_gpu.py" in (tmp_path / "new" / "tests.log").read_text()


def test_a_step_that_fails_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"WARMLANE_PYTHON": "/bin/false"}
    ended = subprocess.run([SCRIPT, tmp_path, "feed", "parity"], capture_output=True, text=True, env=environment)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1] == "failed: feed parity"


def test_an_unknown_step(tmp_path: Path) -> None:
    ended = run(str(tmp_path), "dance")
    assert (ended.returncode, ended.stderr) == (2, "no step dance\n")
