"""The comparison with other servers, against peers that are made up: see `tests.fake_peer`."""

import argparse
import io
import json
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

import bench.peers.__main__ as command
from bench.mix import PHOTOGRAPHS, mix_images
from bench.peers import report
from bench.peers.callers import Callers, Heard, Order
from bench.peers.catalog import ALL, Layout, Peer, find, key
from bench.peers.compare import Comparison
from bench.peers.install import Environment, PeerError, install, installed
from bench.peers.reference import Reference
from bench.peers.rows import FAILED, MEASURED, WRONG, Row, make_point
from bench.peers.server import Server
from bench.peers.setup import Setup
from bench.peers.wires import Wire
from bench.ports import free_port
from bench.record import Record
from tests.fake_peer import class_of

MIX = "small"
PHOTOGRAPH = (PHOTOGRAPHS / "cat.jpg").read_bytes()


def fake_peer(name: str = "fake", requirements: Sequence[str] = (), *layouts: Layout) -> Peer:
    return Peer(
        name,
        name,
        requirements,
        Wire("http", "/"),
        lambda setup: ["-m", "tests.fake_peer"],
        lambda cpus, on_gpu: layouts or ({},),
        {"FAKE_SETTING": "1"},
        about="made up",
    )


@pytest.fixture(scope="module")
def reference() -> Reference:
    photographs = {path.name: path.read_bytes() for path in sorted(PHOTOGRAPHS.glob("*.jpg"))}
    return Reference(
        photographs,
        tuple(map(class_of, photographs.values())),
        tuple(map(class_of, mix_images(MIX))),
        "default",
    )


@pytest.fixture(scope="module")
def callers() -> Iterator[Callers]:
    """Processes for all comparisons; one alone starts its own, as the command does."""
    with Callers(MIX) as callers:
        yield callers


Compare = Callable[..., tuple[list[Row], str]]


@pytest.fixture
def compare(reference: Reference, callers: Callers, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """`compare(peers, *arguments)`: the rows, and what was printed."""
    monkeypatch.setattr(Comparison, "_callers", lambda self: nullcontext(callers))

    def run(peers: Sequence[Peer], *more: str) -> tuple[list[Row], str]:
        console = Console(width=200, file=io.StringIO(), record=True)
        comparison = Comparison(console, arguments("--processes", "1", *more), peers, reference)
        return comparison.run(), console.export_text()

    return run


def arguments(*more: str) -> argparse.Namespace:
    return command.parse(["--callers", "1,4", "--seconds", "0.6", "--warmup-seconds", "0.2", "--no-record", *more])


def serve(layout: Layout, timeout_s: float = 30.0, python: str = sys.executable) -> Server:
    setup = Setup("none", "default", "cpu", 8, 10, free_port(), layout)
    return Server(fake_peer(), Environment(python), setup, Path("unused"), PHOTOGRAPH, timeout_s)


def test_a_service_is_started_checked_loaded_and_started_again(compare: Compare) -> None:
    (row,), _ = compare([fake_peer()], "--rate", "40", "--rounds", "2")
    assert (row.status, row.reason) == (MEASURED, "")
    assert [point.callers for point in row.closed] == [1, 4]
    assert [(point.agreement, point.errors, point.valid) for point in row.closed] == [(1, {}, True)] * 2
    assert row.img_s_of[0] == max(point.img_s for point in row.closed) > 0
    assert len(row.img_s_of) == 3
    assert row.img_s == sorted(row.img_s_of)[1], "the median"
    assert row.img_s == pytest.approx(row.img_s_of[0], rel=0.9)
    assert row.cold_start_s is not None
    assert row.warm_start_s is not None
    assert min(row.cold_start_s, row.warm_start_s) > 0
    assert row.processes == 1
    assert row.rss_mib is not None
    assert 5 < row.rss_mib < 500
    assert [point.rate for point in row.paced] == [40, 40]
    assert row.p99_ms == pytest.approx(sum(point.p99_ms for point in row.paced) / 2)
    assert row.configuration == {
        "max_batch_size": 8,
        "batch_wait_ms": 2,
        "FAKE_SETTING": "1",
        "about": "made up",
    }


def test_started_once_with_what_was_compiled_beforehand(compare: Compare) -> None:
    (row,), told = compare([fake_peer()], "--once", "--rate", "40")
    assert row.status == MEASURED
    assert row.cold_start_s is None
    assert row.warm_start_s is not None
    assert [(point.rate, point.p99_ms) for point in row.paced] == [(40, row.p99_ms)]
    assert row.img_s == max(point.img_s for point in row.closed) > 0
    assert told.index("compiling for all") < told.index("fake: installing")
    assert told.count("fake: starting") == 2, "once to compile, once to measure"


def test_to_be_started_once_needs_a_rate(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("--once")
    assert "--once needs --rate" in capsys.readouterr().err


def test_other_answers_than_the_references_are_reported(compare: Compare) -> None:
    (row,), _ = compare([fake_peer("fake", (), {"off": 1})])
    assert row.status == WRONG
    assert f"cat.jpg: class {class_of(PHOTOGRAPH) + 1}, not {class_of(PHOTOGRAPH)}" in row.reason
    assert row.img_s is None


def test_who_fails_is_a_row_that_says_why_and_the_others_go_on(compare: Compare, tmp_path: Path) -> None:
    broken = fake_peer("broken", (), {"exit_code": 3})
    missing = fake_peer("missing", ("missing",))
    rows, told = compare([broken, missing, fake_peer()], "--wheels", str(tmp_path))
    assert [row.status for row in rows] == [FAILED, FAILED, MEASURED]
    assert rows[0].reason == "ended with exit code 3\nno such model"
    assert "no wheels in" in rows[1].reason
    assert "missing: failed" in told
    assert len(list(report.results(rows, 500, 10).columns[0].cells)) == 3


def test_the_best_of_the_layouts_is_kept_when_tuning(compare: Compare) -> None:
    slow, quick = {"pause_ms": 60}, {"pause_ms": 1}
    (row,), _ = compare([fake_peer("fake", (), slow, quick)], "--tune")
    assert row.configuration["pause_ms"] == 1
    assert [tried["layout"] for tried in row.tried] == [slow, quick]
    assert row.tried[0]["img_s"] < row.tried[1]["img_s"]


def test_without_tuning_the_first_layout_is_taken(compare: Compare) -> None:
    (row,), _ = compare([fake_peer("fake", (), {"pause_ms": 2}, {"exit_code": 3})])
    assert (row.status, row.configuration["pause_ms"]) == (MEASURED, 2)


def test_no_load_within_the_limit_leaves_the_figure_out(compare: Compare) -> None:
    (row,), _ = compare([fake_peer("fake", (), {"pause_ms": 20})], "--slo-ms", "5")
    assert (row.status, row.img_s) == (MEASURED, None)
    assert list(report.findings([row])) == ["fake: no load had a p99 within the limit, or none was valid"]


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_all_processes_of_a_server_end_with_it() -> None:
    with serve({"child": 1}) as server:
        assert server.process_count() == 2
        children = psutil.Process(server.pid).children()
    assert children
    assert not any(lives(child) for child in children)


def test_a_server_without_an_interpreter_fails() -> None:
    with pytest.raises(PeerError, match=r"cannot be started: .*no-such-python"), serve({}, python="no-such-python"):
        pass


def test_a_server_that_does_not_answer_in_time_fails() -> None:
    with pytest.raises(PeerError, match="no answer after 1 s"), serve({"pause_ms": 1500}, timeout_s=1.0):
        pass


def test_latency_of_an_open_loop_counts_from_the_schedule(reference: Reference) -> None:
    with serve({"pause_ms": 30}) as server, Callers(MIX, processes=2) as callers:
        heard = callers.run(Order(server.wire, MIX, reference.mix_top1, 8, rate=60.0, warmup_s=0.3, seconds=1.5))
    assert 30 <= heard.percentile_ms(50) < 1500
    assert heard.img_s == pytest.approx(60, rel=0.5)
    assert heard.lags_ms
    assert heard.agreement == 1
    assert heard.cpu_s > 0


def test_nobody_there_is_an_error_and_no_answer(reference: Reference, callers: Callers) -> None:
    order = Order(Wire("http", "/", free_port()), MIX, reference.mix_top1, 2, warmup_s=0.2, seconds=0.5)
    heard = callers.run(order)
    assert not heard.latencies_ms
    assert set(heard.errors) == {"ClientConnectorError"}


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"errors": Counter({"HTTP 503": 1})}, False),
        ({"latencies_ms": []}, False),
        ({"cpu_s": 9.5}, False),
        ({"lags_ms": [50.0]}, False),
    ],
)
def test_a_load_is_valid_if_nothing_failed_and_the_callers_kept_their_pace(change: dict[str, Any], valid: bool) -> None:
    order = Order(Wire("http"), MIX, (), callers=4, rate=10.0, seconds=10.0)
    heard = Heard(10.0, latencies_ms=[5.0] * 100, lags_ms=[1.0], agreed=100, cpu_s=2.0)
    assert make_point(order, replace(heard, **change), processes=1).valid is valid


def measured(name: str, img_s: float) -> Row:
    return Row(name, img_s=img_s, callers=8, p50_ms=10.0, p99_ms=20.0, version="1.0")


def test_whenever_one_is_called_faster_what_was_not_measured_is_said() -> None:
    rows = [measured("warmlane", 60.0), measured("slower", 30.0), measured("quicker", 90.0)]
    assert list(report.findings(rows)) == [
        "warmlane is 2.00 times faster than slower. Triton with TensorRT and DALI: not measured.",
        "warmlane is 1.50 times slower than quicker. Triton with TensorRT and DALI: not measured.",
    ]


def test_the_table_has_the_figures_and_for_a_failure_its_status() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    rows = [Row("broken", FAILED, "why"), measured("warmlane", 61.25)]
    console.print(report.results(rows, 500, 20.0), report.configurations(rows))
    text = console.export_text()
    assert text.index("warmlane") < text.index("broken")
    assert "61.2" in text
    assert "failed" in text
    assert "p50 ms at 20.0/s" in text


def test_the_command_writes_a_record_with_a_list_and_ends_with_it(
    reference: Reference, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = {"fake": fake_peer(), "broken": fake_peer("broken", (), {"exit_code": 3})}
    monkeypatch.setattr(command, "find", lambda names: [peers[name] for name in names])
    monkeypatch.setattr(command, "make_reference", lambda *_: reference)
    write = Record.write
    monkeypatch.setattr(Record, "write", lambda record: write(record, tmp_path))
    args = ["--peers", "fake,broken", "--callers", "2", "--seconds", "0.5", "--warmup-seconds", "0.2"]
    assert command.main(args) == 1
    shown = capsys.readouterr().out
    (path,) = tmp_path.glob("peers_cpu*.json")
    record = json.loads(path.read_text())
    assert json.loads(shown.splitlines()[-1]) == record
    assert [(row["name"], row["status"]) for row in record["results"]] == [("fake", MEASURED), ("broken", FAILED)]
    assert {"img_s", "p50_ms", "p99_ms", "cold_start_s", "rss_mib"} <= set(record["results"][0])
    assert record["conditions"]["not_measured"] == "Triton with TensorRT and DALI"
    assert shown.count(report.NOT_MEASURED) >= 2


def make_wheel(folder: Path, name: str, version: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_a_peer_is_installed_from_wheels_into_a_folder_of_its_own(tmp_path: Path) -> None:
    peer = fake_peer("made_up", ("made_up",))
    make_wheel(tmp_path / "wheels" / "made_up", "made_up", "3.2")
    environment = install(peer, sys.executable, tmp_path / "wheels", tmp_path / "peers")
    assert environment == Environment(str(tmp_path / "peers" / "made_up" / "bin" / "python"), "3.2")
    found = subprocess.run(
        [environment.python, "-c", "import made_up, torch; print(made_up.__file__)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.startswith(str(tmp_path / "peers"))
    assert install(peer, "no-such-python", None, tmp_path / "peers") == environment


def test_what_cannot_be_installed_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    peer = fake_peer("made_up", ("made_up",))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "made_up-1-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(PeerError, match=r"could not be installed: .*made_up"):
        install(peer, sys.executable, tmp_path / "wheels", tmp_path / "peers")
    assert not installed(peer, tmp_path / "peers")


def test_peers_are_found_by_name() -> None:
    assert [peer.name for peer in find(["warmlane", "ray-serve"])] == ["warmlane", "Ray Serve"]
    with pytest.raises(ValueError, match="unknown peer 'flask': one of warmlane, litserve"):
        find(["flask"])


@pytest.mark.parametrize("peer", ALL, ids=key)
@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "gpu"])
def test_no_layout_of_a_cpu_uses_more_threads_than_cores(peer: Peer, on_gpu: bool) -> None:
    layouts = peer.layouts(4, on_gpu)
    assert layouts
    for layout in layouts if not on_gpu else ():
        assert layout.get("workers", layout.get("instances", 1)) * layout.get("torch_threads", 1) <= 4
