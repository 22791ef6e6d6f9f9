"""Frontends that listen on ports of their own: callers take turns between them."""

import os
import signal
import socket

import psutil
import pytest

from bench.children import children
from bench.ports import free_ports
from bench.service import Service, with_own_ports
from server.port import balanced_target, hold_frontend_ports
from server.settings import Settings
from server.startup import StartError
from tests import slow_model
from tests.serving import eventually
from tests.slow_model import solid
from warmlane.client import Client
from warmlane.errors import WarmlaneError

FLAGS = (*slow_model.FLAGS, "--no-compile", "--devices", "cpu", "--lanes", "1", "--decode-threads", "1")


def ports_of(target: str) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in target.split(",")]


def established(pid: int, port: int) -> int:
    ends = psutil.Process(pid).net_connections("tcp")
    return sum(end.status == psutil.CONN_ESTABLISHED and end.laddr.port == port for end in ends)


def answers(client: Client, level: int) -> bool:
    try:
        return client.classify(solid(level), timeout_s=5).predictions[0].index == level
    except WarmlaneError:
        return False


def test_one_client_calls_every_frontend_also_one_that_was_replaced() -> None:
    first = free_ports(2)
    with Service([*FLAGS, "--frontends", "2", "--frontend-port", str(first)]) as service:
        assert ports_of(service.target) == [first, first + 1]

        def pids() -> dict[str, int]:
            return {child.name: child.process.pid for child in children(service.pid)}

        with Client(service.target) as client:
            assert all(answers(client, level) for level in range(100, 120))
            before = pids()
            assert [established(before[f"frontend-{index}"], first + index) for index in (0, 1)] == [1, 1]
            os.kill(before["frontend-0"], signal.SIGKILL)
            assert eventually(lambda: answers(client, 130)), "the other one answers"
            assert eventually(lambda: pids().get("frontend-0", before["frontend-0"]) != before["frontend-0"], 60)
            after = pids()["frontend-0"]
            # It is called again without the client being told.
            assert eventually(lambda: answers(client, 131) and established(after, first) == 1, 60)
            assert all(answers(client, level) for level in range(140, 160))


def test_a_port_that_is_taken_is_told_and_none_is_kept() -> None:
    first = free_ports(3)
    settings = Settings(host="127.0.0.1", frontends=3, frontend_port=first)
    with socket.socket() as other:
        other.bind(("127.0.0.1", first + 2))
        with pytest.raises(StartError, match=rf"{first + 2}: is it taken\? \(--host, --frontend-port\)"):
            hold_frontend_ports(settings)
    held = hold_frontend_ports(settings)
    assert ports_of(balanced_target(held)) == [first, first + 1, first + 2]
    # A second server fails: it does not take a share of the calls.
    with pytest.raises(StartError):
        hold_frontend_ports(settings)
    for each in held:
        each.close()


@pytest.mark.parametrize(
    ("host", "target"), [("127.0.0.1", "ipv4:127.0.0.1:"), ("0.0.0.0", "ipv4:127.0.0.1:"), ("[::1]", "ipv6:[::1]:")]
)
def test_the_target_is_one_that_can_be_called_from_here(host: str, target: str) -> None:
    (held,) = hold_frontend_ports(Settings(host=host, frontends=1, frontend_port=0))
    assert balanced_target([held]) == f"{target}{held.getsockname()[1]}"
    held.close()


@pytest.mark.parametrize(
    ("args", "more"),
    [
        (["--frontends", "2"], ["--frontend-port", "0"]),
        (["--frontends", "2", "--frontend-port", "7000"], []),
        (["--frontends", "1"], []),
        (["--threads", "1"], []),
    ],
)
def test_the_bench_balances_over_several_frontends(args: list[str], more: list[str]) -> None:
    assert with_own_ports(args) == [*args, *more]
