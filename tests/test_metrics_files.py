"""Metrics of several processes, over restarts, kills and damage.

No fakes: the children are processes that count through `pipeline.metrics` (tests/counting_child.py). This process is no
supervisor itself, since `pipeline.metrics` is imported here already; where one is needed, a script is run as such.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from pipeline import metrics
from server.metrics_files import VARIABLE, FilesCollector, MetricsFiles, _locked_folder, adopt
from tests import counting_child

_ROOT = Path(__file__).parent.parent
_PATH = os.pathsep.join([str(_ROOT), str(_ROOT / "protos")])
GAUGES = {"warmlane_slots_in_use", "warmlane_lanes_busy", "warmlane_engines_warm"}
RESTARTS, PLACES = 100, ("frontend-0", "frontend-1", "engine-0", "engine-1")

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Child = subprocess.Popen[str]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[MetricsFiles]:
    """What `prepare` makes, without the part of the supervisor itself."""
    files = MetricsFiles(*_locked_folder(tmp_path))
    yield files
    files.close()


def environment(folder: Path | None) -> dict[str, str]:
    given = {**os.environ, "PYTHONPATH": _PATH}
    return given if folder is None else given | {VARIABLE: str(folder)}


@contextmanager
def starting(files: MetricsFiles, name: str) -> Iterator[Child]:
    """A child that is about to count, and is killed and reaped at the end."""
    command = [sys.executable, "-m", "tests.counting_child", name]
    with subprocess.Popen(command, env=environment(files.folder), stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def counting(files: MetricsFiles, name: str) -> Iterator[Child]:
    """As `starting`, once it has counted."""
    with starting(files, name) as child:
        wait_until_counted(child)
        yield child


def wait_until_counted(child: Child) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "counted\n"


def samples_of(families: list[Metric]) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def scraped(files: MetricsFiles) -> Samples:
    return samples_of(list(files.collector().collect()))


def assert_nothing_fell(before: Samples, after: Samples) -> None:
    fallen = {
        key: (value, after.get(key))
        for key, value in before.items()
        if key[0] not in GAUGES and value > after.get(key, -1.0)
    }
    assert not fallen


def test_over_100_restarts_files_are_bounded_and_counters_never_fall(files: MetricsFiles) -> None:
    last: Samples = {}
    counts_of_files = set()
    for life in range(1, RESTARTS // len(PLACES) + 2):
        with ExitStack() as stack:
            # All at once: those that have counted keep the CPUs busy.
            children = {name: stack.enter_context(starting(files, name)) for name in PLACES}
            for child in children.values():
                wait_until_counted(child)
            now = scraped(files)
            assert_nothing_fell(last, now)
            assert now["warmlane_slots_in_use", ()] == counting_child.SLOTS * len(PLACES)
            # In the middle of its counting, wherever that is.
            children["engine-0"].kill()
            last = scraped(files)
            assert_nothing_fell(now, last)
        for name in PLACES:
            files.forget(name)
        now = scraped(files)
        assert_nothing_fell(last, now)
        assert not GAUGES & {name for name, _ in now}
        counts_of_files.add(len(list(files.folder.iterdir())))
        lives = life * len(PLACES)
        assert now["warmlane_recompiles_total", ()] == counting_child.RECOMPILES * lives
        assert now["warmlane_images_total", (("status", "OK"),)] == counting_child.ANSWERS * lives
        assert now["warmlane_stage_seconds_count", (("stage", "decode"),)] == counting_child.ANSWERS * lives
        last = now
    assert counts_of_files == {2 * len(PLACES)}, "counters and histograms; gauges have been forgotten"


def test_a_child_killed_at_any_moment_of_its_start_harms_nothing(files: MetricsFiles) -> None:
    moments = random.Random(7)
    with counting(files, "frontend-0"):
        last = scraped(files)
    for _ in range(20):
        with starting(files, "frontend-0") as child:
            time.sleep(moments.uniform(0.0, 0.6))
            child.kill()
        files.forget("frontend-0")
        now = scraped(files)
        assert_nothing_fell(last, now)
        last = now
    with counting(files, "frontend-0"):
        assert scraped(files)["warmlane_recompiles_total", ()] >= 2 * counting_child.RECOMPILES
        assert len(list(files.folder.iterdir())) == 3


def test_a_restarted_child_starts_with_fresh_gauges_even_if_nobody_forgot_the_old(files: MetricsFiles) -> None:
    for _ in range(2):
        with counting(files, "frontend-0"):
            assert scraped(files)["warmlane_slots_in_use", ()] == counting_child.SLOTS


def test_forgetting_one_spares_those_whose_name_begins_alike(files: MetricsFiles) -> None:
    with counting(files, "frontend-1"), counting(files, "frontend-10"):
        assert scraped(files)["warmlane_slots_in_use", ()] == 2 * counting_child.SLOTS
        files.forget("frontend-1")
        assert scraped(files)["warmlane_slots_in_use", ()] == counting_child.SLOTS


def truncate_all(data: bytes) -> bytes:
    return b""


def truncate_header(data: bytes) -> bytes:
    return data[:3]


def truncate_values(data: bytes) -> bytes:
    return data[:-20]


def lie_of_length(data: bytes) -> bytes:
    return (1 << 30).to_bytes(4, sys.byteorder) + data[4:]


def lie_of_nothing(data: bytes) -> bytes:
    return (3).to_bytes(4, sys.byteorder) + data[4:]


def garble_a_key(data: bytes) -> bytes:
    return data[:-60] + b"\xff" * 60


def garble_all(data: bytes) -> bytes:
    return bytes(range(256)) * 16


@pytest.mark.parametrize(
    ("damage", "keeps_first"),
    [
        (truncate_all, False),
        (truncate_header, False),
        (truncate_values, True),
        (lie_of_length, True),
        (lie_of_nothing, True),
        (garble_a_key, True),
        (garble_all, False),
    ],
)
def test_a_damaged_file_harms_neither_the_scrape_nor_the_next_child(
    files: MetricsFiles, damage: object, keeps_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    with counting(files, "frontend-0"), counting(files, "engine-0"):
        pass
    file = files.folder / "counter_frontend-0.db"
    used = file.read_bytes()[: int.from_bytes(file.read_bytes()[:4], sys.byteorder)]
    file.write_bytes(damage(used))
    between = scraped(files)
    assert between["warmlane_recompiles_total", ()] >= counting_child.RECOMPILES, "at least what the other file says"
    with counting(files, "frontend-0"):
        caplog.clear()
        after = scraped(files)
    lives = 3 if keeps_first else 2
    assert after["warmlane_recompiles_total", ()] == counting_child.RECOMPILES * lives
    assert after["warmlane_batch_fill_count", ()] > 0
    assert not caplog.records, "the file is sound again"
    assert not list(files.folder.glob("*.mending"))


def test_a_file_that_is_just_being_made_is_no_damage(files: MetricsFiles) -> None:
    with counting(files, "frontend-0"):
        (files.folder / "counter_engine-0.db").touch()
        assert scraped(files)["warmlane_recompiles_total", ()] == counting_child.RECOMPILES


SUPERVISOR = """
import os, sys
from pathlib import Path
from server import metrics_files
files = metrics_files.prepare(Path(sys.argv[1]))
from pipeline import metrics
files.count_restart("frontend-0")
files.count_restart("frontend-1")
assert os.environ["PROMETHEUS_MULTIPROC_DIR"] == str(files.folder)
print(files.folder, flush=True)
sys.stdin.readline()
files.close()
assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
"""


@contextmanager
def supervisor(parent: Path) -> Iterator[tuple[Child, Path]]:
    """A process that has prepared, and its folder. It ends once a line is sent."""
    command = [sys.executable, "-c", SUPERVISOR, str(parent)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(None), text=True, cwd=_ROOT, **pipes) as popen:  # type: ignore[call-overload]
        try:
            yield popen, Path(popen.stdout.readline().strip())
        finally:
            popen.kill()


def test_a_supervisor_counts_too_and_removes_its_folder(tmp_path: Path) -> None:
    with supervisor(tmp_path) as (popen, folder):
        assert str(popen.pid) in folder.name
        assert folder.stat().st_mode & 0o077 == 0
        samples = samples_of(list(FilesCollector(folder).collect()))
        assert samples["warmlane_process_restarts_total", (("role", "frontend"),)] == 2
        popen.communicate("end\n", timeout=30)
        assert popen.returncode == 0
    assert not list(tmp_path.iterdir())


def test_what_a_killed_supervisor_left_is_removed_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "warmlane-metrics-note").touch()
    with supervisor(tmp_path) as (_, living):
        with supervisor(tmp_path) as (_, killed):
            pass
        assert killed.exists()
        with supervisor(tmp_path) as (_, third):
            assert not killed.exists()
            assert living.exists()
            assert third.exists()
    assert (tmp_path / "warmlane-metrics-note").exists()


def test_a_link_in_the_temporary_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "warmlane-metrics-1-x").symlink_to(precious)
    with supervisor(tmp_path):
        assert precious.exists()


def test_without_a_supervisor_a_child_counts_in_memory(tmp_path: Path) -> None:
    script = """
from server.metrics_files import adopt
adopt("frontend-0")
from prometheus_client import REGISTRY
from pipeline import metrics
metrics.RECOMPILES.inc()
assert REGISTRY.get_sample_value("warmlane_recompiles_total") == 1
"""
    subprocess.run([sys.executable, "-c", script], env=environment(None), cwd=_ROOT, check=True, timeout=60)


def test_adopting_too_late_is_a_bug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert metrics.RECOMPILES
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(AssertionError, match="count elsewhere"):
        adopt("frontend-0")
