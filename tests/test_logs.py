"""The log of a process, as it comes out on standard error."""

import json
import subprocess
import sys

import pytest

from bench.service import ROOT, python_path

LINES = """
import logging
from server import logs
logs.set_up("info", as_json={as_json}, process="frontend-3")
grpc_log = logging.getLogger("grpc._cython.cygrpc")
grpc_log.error("ExecuteBatchError raised in core by servicer method [/warmlane.v1.Classifier/ClassifyStream]")
grpc_log.error("something else")
logging.getLogger("server.front").info("draining")
"""


def lines(*, as_json: bool) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", LINES.format(as_json=as_json)],
        cwd=ROOT,
        env={"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stderr.splitlines()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_caller_who_left_while_its_status_was_sent_is_no_event(as_json: bool) -> None:
    assert [line for line in lines(as_json=as_json) if "ExecuteBatchError" in line] == []
    assert any("something else" in line for line in lines(as_json=as_json))


def test_a_line_names_its_process() -> None:
    assert lines(as_json=False)[-1].endswith(" I frontend-3 server.front: draining")


def test_a_json_line_names_its_process() -> None:
    event = json.loads(lines(as_json=True)[-1])
    assert (event["process"], event["logger"], event["message"]) == ("frontend-3", "server.front", "draining")
    assert event["request_id"] == "-"
