"""The page that Prometheus reads, and the dashboard that reads Prometheus.

No fakes: the page is that of a server, and of a supervisor with a child that counts.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from bench.ports import free_port
from pipeline import metrics
from server import status
from server.metrics_page import MetricsPage
from tests import counting_child, serving
from tests.slow_model import FLAGS, solid
from warmlane import errors
from warmlane.client import Client
from warmlane.v1 import classifier_pb2 as pb

_ROOT = Path(__file__).parent.parent
DASHBOARD = json.loads((_ROOT / "docs" / "grafana" / "warmlane.json").read_text())
README = (_ROOT / "README.md").read_text()

# Of a sample: its name, and each of its labels.
Sample = tuple[str, frozenset[tuple[str, str]]]


def read(port: int) -> dict[Sample, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        families = text_string_to_metric_families(page.read().decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(page: dict[Sample, float], name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]


def labels_of(page: dict[Sample, float]) -> dict[str, set[str]]:
    """Each metric's name, and the names of its labels."""
    found: dict[str, set[str]] = {}
    for name, labels in page:
        found.setdefault(name, set()).update(label for label, _ in labels)
    return found


@pytest.fixture(scope="module")
def page() -> Iterator[dict[Sample, float]]:
    """Of a server that has answered two images and refused three."""
    port = free_port()
    with serving.process(*FLAGS, "--metrics-port", str(port)) as server, Client(server.target) as client:
        for level in (50, 60):
            client.classify(solid(level))
        with pytest.raises(errors.InvalidArgument):
            client.classify(b"no image")
        with pytest.raises(errors.InvalidArgument):
            client.classify(solid(50), top_k=101)
        with serving.raw_stub(server.target) as stub, pytest.raises(grpc.RpcError, match="no model 'another'"):
            stub.Classify(pb.ClassifyRequest(image=solid(50), model="another"))
        yield read(port)


def test_every_image_is_counted_once_by_its_status(page: dict[Sample, float]) -> None:
    counts = {status: value(page, "warmlane_images_total", status=status) for status in metrics.STATUSES}
    assert {status: count for status, count in counts.items() if count} == {
        "OK": 2,
        "INVALID_ARGUMENT": 2,
        "NOT_FOUND": 1,
    }
    assert {value(page, "warmlane_stage_seconds_count", stage=stage) for stage in metrics.STAGES} == {2}
    assert value(page, "warmlane_batch_fill_sum") == 2


def test_the_engine_tells_how_busy_it_is(page: dict[Sample, float]) -> None:
    assert 0 < value(page, "warmlane_lane_busy_seconds_total") < 60
    assert value(page, "warmlane_lanes_busy") == value(page, "warmlane_slots_in_use") == 0
    assert value(page, "warmlane_engines_warm") == 1


def test_the_server_process_has_its_cost(page: dict[Sample, float]) -> None:
    process = {"role": "server", "process": "server"}
    assert value(page, "warmlane_process_cpu_seconds_total", **process) > 0.1
    assert value(page, "warmlane_process_resident_bytes", **process) > 1e7


def queries() -> list[str]:
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    found += [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
    assert len(found) > 15
    return found


def test_every_metric_of_the_dashboard_is_on_the_page(page: dict[Sample, float]) -> None:
    named = {name for query in queries() for name in re.findall(r"warmlane_\w+", query)}
    assert named <= set(labels_of(page))


def test_every_label_of_the_dashboard_is_on_its_metric(page: dict[Sample, float]) -> None:
    labels = labels_of(page)
    for query in queries():
        for name, selector in re.findall(r"(warmlane_\w+)\{([^}]*)\}", query):
            # Prometheus itself adds `job`.
            assert set(re.findall(r"(\w+)[=!]", selector)) <= labels[name] | {"job"}, query
        for grouped in re.findall(r"by \(([\w, ]+)\)", query):
            for name in re.findall(r"warmlane_\w+", query):
                assert set(grouped.split(", ")) <= labels[name], query
    assert {stage for query in queries() for stage in re.findall(r'stage="(\w+)"', query)} <= set(metrics.STAGES)
    assert {status for query in queries() for status in re.findall(r'status!?="(\w+)"', query)} <= set(metrics.STATUSES)


def test_the_dashboard_has_what_grafana_needs() -> None:
    """The keys of its dashboard schema that an import does not fill in by itself."""
    needed = {"uid", "title", "schemaVersion", "version", "panels", "templating", "time", "annotations", "refresh"}
    assert needed <= DASHBOARD.keys()
    assert "id" not in DASHBOARD, "an id belongs to one Grafana"
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in {"row", "timeseries", "stat"}
        if panel["type"] != "row":
            assert {"title", "datasource", "fieldConfig", "options"} <= panel.keys()
            assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]


def test_no_two_panels_of_the_dashboard_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells


def test_the_readme_has_a_row_for_every_metric(page: dict[Sample, float]) -> None:
    rows = dict(re.findall(r"^\| `(warmlane_\w+)` \| \w+ \| (.*?) \|", README, re.MULTILINE))
    by_name: dict[str, set[str]] = {}
    for name, labels in labels_of(page).items():
        if name.startswith("warmlane_") and not name.endswith("_created"):
            by_name.setdefault(re.sub("_(bucket|sum|count)$", "", name), set()).update(labels - {"le"})
    assert {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()} == by_name


def test_every_status_of_the_table_is_counted_from_0() -> None:
    codes = {code.name for code in status._TABLE.values()} | {grpc.StatusCode.INTERNAL.name, "OK", "CANCELLED"}
    assert set(metrics.STATUSES) == codes


SUPERVISOR = """
import os, subprocess, sys
from pathlib import Path
from server import metrics_files
files = metrics_files.prepare(Path(sys.argv[1]))
command = [sys.executable, "-m", "tests.counting_child", "engine-0"]
pids = {"supervisor": os.getpid()}
page = files.serve(0, lambda: pids)
for life in range(2):
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        pids["engine-0"] = child.pid
        if life:
            files.count_restart("engine-0")
        print(page.port, flush=True)
        sys.stdin.readline()
        child.kill()
    files.forget("engine-0")
page.close()
files.close()
"""


def test_a_supervisor_serves_the_sum_and_the_cost_of_each_process(tmp_path: Path) -> None:
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "protos")])
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        port = int(supervisor.stdout.readline())
        time.sleep(0.3)
        first = read(port)
        supervisor.stdin.write("kill it\n")
        supervisor.stdin.flush()
        supervisor.stdout.readline()
        second = read(port)
        supervisor.communicate("kill it\n", timeout=30)
    assert supervisor.returncode == 0
    engine, restarts = {"role": "engine", "process": "engine-0"}, "warmlane_process_restarts_total"
    assert value(first, restarts, role="engine") == value(first, restarts, role="frontend") == 0
    assert value(second, restarts, role="engine") == 1
    assert value(second, "warmlane_recompiles_total") == 2 * counting_child.RECOMPILES
    assert value(second, "warmlane_slots_in_use") == counting_child.SLOTS
    cpu = [value(page, "warmlane_process_cpu_seconds_total", **engine) for page in (first, second)]
    assert 0 < cpu[0] < cpu[1]
    assert value(second, "warmlane_process_cpu_seconds_total", role="supervisor", process="supervisor") > 0


def test_a_dead_process_keeps_its_cpu_time_and_harms_no_scrape() -> None:
    with subprocess.Popen([sys.executable, "-c", "sum(range(10**7)); input()"], stdin=subprocess.PIPE) as child:
        page = MetricsPage(0, CollectorRegistry(), lambda: {"frontend-0": child.pid})
        try:
            assert serving.eventually(lambda: sum(psutil.Process(child.pid).cpu_times()[:2]) > 0.1)
            alive = read(page.port)
            child.kill()
            child.wait()
            dead = read(page.port)
        finally:
            page.close()
    labels = {"role": "frontend", "process": "frontend-0"}
    name = "warmlane_process_cpu_seconds_total"
    assert value(dead, name, **labels) == value(alive, name, **labels) > 0
    assert "warmlane_process_resident_bytes" not in labels_of(dead)
