"""Frontends, engines and their supervisor, as `python -m server --frontends N` starts them: who is killed, who notices.

Each process takes seconds of CPU to start, so that tests share a server where they can, and leave it as they found it.
"""

import os
import re
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from grpc_health.v1 import health_pb2

from bench.ports import free_port
from tests import slow_model
from tests.images.corpus import bad, good
from tests.serving import Process, eventually, process, starting
from tests.slow_model import Fragile, solid
from tests.test_server_bad_input import assert_answered, assert_refused
from tests.test_server_life import Health
from tests.test_server_wrong_caller import call_at_random
from warmlane import errors
from warmlane.client import Client
from warmlane.results import Classification

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Busy machines take long to start a process.
START_S = 90.0
# One image a batch: a level of 2 to 9 then takes its engine that many tenths of a second.
FLAGS = (*slow_model.FLAGS, "--batch-size", "1", "--lanes", "1", "--threads", "1", "--decode-threads", "1")
ONE_OF_EACH = (*FLAGS, "--frontends", "1", "--devices", "cpu")
FRAGILE = ("--model", "tests.slow_model:Fragile")


@dataclass
class Service:
    """Two frontends, two engines."""

    server: Process
    metrics_port: int

    @property
    def target(self) -> str:
        return self.server.target

    def pid(self, place: str) -> int:
        return self.server.children()[place].pid

    def metric(self, sample: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as page:
            found = re.search(rf"^{re.escape(sample)} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_until_whole(self) -> None:
        assert eventually(lambda: len(self.server.children()) == 4, START_S)
        assert eventually(lambda: self.metric("warmlane_engines_warm") == 2, START_S)
        for frontend in ("frontend-0", "frontend-1"):
            assert eventually(lambda: self.sockets(frontend, psutil.CONN_LISTEN) > 0, START_S)  # noqa: B023

    def connections(self, frontend: str) -> int:
        """Callers that the kernel has given to a frontend."""
        return self.sockets(frontend, psutil.CONN_ESTABLISHED)

    def sockets(self, frontend: str, state: str) -> int:
        port = int(self.target.rpartition(":")[2])
        ends = self.server.children()[frontend].net_connections("tcp")
        return sum(end.status == state and end.laddr.port == port for end in ends)


def soon_s() -> float:
    """Within which the calls of a dead engine must fail; a machine that is far too busy has its own idea of time."""
    return 1.0 if os.getloadavg()[0] < 2 * (os.cpu_count() or 1) else 5.0


@pytest.fixture(scope="module")
def shared_service() -> Iterator[Service]:
    port = free_port()
    two = ("--frontends", "2", "--devices", "cpu,cpu", "--metrics-port", str(port))
    with process(*FLAGS, *two, "--engine-timeout-s", "2.5", "--frontend-timeout-s", "4") as server:
        yield Service(server, port)


@pytest.fixture
def service(shared_service: Service) -> Service:
    shared_service.wait_until_whole()
    return shared_service


@contextmanager
def callers(target: str, count: int) -> Iterator[list[Client]]:
    """Each with a connection of its own, which is open."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(target)) for _ in range(count)]
        for client in clients:
            client.model()
        yield clients


def outcome(client: Client, level: int) -> int | errors.WarmlaneError:
    try:
        return top(client.classify(solid(level), timeout_s=30))
    except errors.WarmlaneError as error:
        return error


def top(answer: Classification) -> int:
    return answer.predictions[0].index


def test_both_frontends_and_both_engines_answer(service: Service) -> None:
    with callers(service.target, 12) as clients, ThreadPoolExecutor(12) as pool:
        assert service.connections("frontend-0") + service.connections("frontend-1") == 12
        assert service.connections("frontend-0") % 12, "the kernel shares the connections out"
        levels = [*range(13, 256), 0]
        answers = pool.map(outcome, [clients[level % 12] for level in levels], levels)
        assert list(answers) == levels
        slow = [pool.submit(outcome, client, 9) for client in clients[:2]]
        assert eventually(lambda: service.metric("warmlane_lanes_busy") == 2)
        assert [call.result() for call in slow] == [9, 9]
    assert service.metric('warmlane_images_total{status="OK"}') > 0


def test_every_kind_of_file_over_several_processes(service: Service) -> None:
    with Client(service.target) as client:
        for sample in good():
            assert_answered(client, sample)
        for sample in bad():
            assert_refused(client, sample)


def test_every_answer_belongs_to_its_caller_over_several_processes(service: Service) -> None:
    images = [solid(level) for level in range(256)]
    until = time.monotonic() + 3
    with ThreadPoolExecutor(12) as pool:
        counts = list(pool.map(lambda seed: call_at_random(service.target, images, seed, until), range(12)))
    answered, given_up = (sum(column) for column in zip(*counts, strict=True))
    assert min(answered, given_up) > 50
    assert eventually(lambda: service.metric("warmlane_slots_in_use") == 0), "slots were lost"


def test_a_killed_frontend_loses_only_its_own_calls(service: Service) -> None:
    before = service.pid("frontend-0")
    restarts = service.metric('warmlane_process_restarts_total{role="frontend"}')
    with callers(service.target, 12) as clients, ThreadPoolExecutor(12) as pool:
        its_own = service.connections("frontend-0")
        calls = [pool.submit(outcome, client, 3) for client in clients]
        assert eventually(lambda: service.metric("warmlane_lanes_busy") == 2)
        os.kill(before, signal.SIGKILL)
        outcomes = [call.result() for call in calls]
        lost = [each for each in outcomes if each != 3]
        # Some of its calls may have been answered before.
        assert 0 < len(lost) <= its_own < 12
        assert all(isinstance(each, errors.Unavailable) for each in lost), lost
        assert outcome(clients[0], 50) == 50 or outcome(clients[1], 50) == 50
    service.wait_until_whole()
    assert service.pid("frontend-0") != before
    assert eventually(lambda: service.metric('warmlane_process_restarts_total{role="frontend"}') == restarts + 1)
    with callers(service.target, 12) as clients:
        assert service.connections("frontend-0") > 0
        assert [outcome(client, 60) for client in clients] == [60] * 12, "a new frontend knows the engines"


def test_a_killed_engine_fails_what_it_had_and_the_other_goes_on(service: Service) -> None:
    before = service.pid("engine-0")
    with (
        callers(service.target, 4) as clients,
        ThreadPoolExecutor(4) as pool,
        closing(Health(service.target)) as health,
    ):
        calls = [pool.submit(outcome, client, 9) for client in clients]
        assert eventually(lambda: service.metric("warmlane_slots_in_use") == 4)
        os.kill(before, signal.SIGKILL)
        killed = time.monotonic()
        assert eventually(lambda: len(failed(calls)) == 2)
        assert time.monotonic() - killed < soon_s()
        assert health.check("") == SERVING
        lost = failed(calls)
        assert all("the engine has died" in str(each) for each in lost), lost
        assert [outcome(client, 70) for client in clients] == [70] * 4
        assert [call.result() for call in calls if call.result() not in lost] == [9, 9]
    service.wait_until_whole()
    assert service.pid("engine-0") != before
    assert service.metric('warmlane_process_restarts_total{role="engine"}') == 1
    assert eventually(lambda: service.metric("warmlane_slots_in_use") == 0), "slots were lost"


def failed(calls: Iterable[Future[int | errors.WarmlaneError]]) -> list[errors.Unavailable]:
    """What has failed so far, for want of an engine."""
    outcomes = [call.result() for call in calls if call.done()]
    return [each for each in outcomes if isinstance(each, errors.Unavailable)]


def test_a_hung_engine_is_replaced(service: Service) -> None:
    before = service.pid("engine-0")
    # Enough for both frontends to have some, whose images then go to both engines.
    with callers(service.target, 12) as clients, ThreadPoolExecutor(12) as pool:
        os.kill(before, signal.SIGSTOP)
        stopped = time.monotonic()
        outcomes: list[int | errors.WarmlaneError] = []

        def one_is_lost() -> bool:
            outcomes.extend(pool.map(outcome, clients, [80] * 12))
            return any(isinstance(each, errors.Unavailable) for each in outcomes)

        assert eventually(one_is_lost), "again and again: frontends hear of a new engine after the metrics tell of it"
        assert 80 in outcomes, "the other engine answers"
        assert 2.0 < time.monotonic() - stopped < 20.0, "long before the callers would give up"
    assert re.search(r"engine-0 has hung for [2-9]\.", service.server.log())
    service.wait_until_whole()
    assert service.pid("engine-0") != before


def test_a_hung_frontend_is_replaced(service: Service) -> None:
    before = service.pid("frontend-1")
    with callers(service.target, 12) as clients, ThreadPoolExecutor(12) as pool:
        os.kill(before, signal.SIGSTOP)
        lost = [each for each in pool.map(outcome, clients, [80] * 12) if each != 80]
        assert 0 < len(lost) < 12, "the frozen one's callers lose their calls, once it is killed"
        assert all(isinstance(each, errors.Unavailable) for each in lost)
    assert re.search(r"frontend-1 has hung for 4\.\d s \(--frontend-timeout-s\)", service.server.log())
    service.wait_until_whole()
    assert service.pid("frontend-1") != before


def test_a_second_supervisor_on_the_port_fails(service: Service) -> None:
    port = service.target.rpartition(":")[2]
    with starting("--port", port, *ONE_OF_EACH) as second:
        assert second.popen.wait(START_S) == 2
        assert second.log() == f"server: cannot listen on 127.0.0.1:{port}: is it taken? (--host, --port)\n"
    with Client(service.target) as client:
        assert outcome(client, 90) == 90


def test_sigterm_under_load_fails_no_call_that_was_taken(service: Service) -> None:
    """The last of those that share the service: it ends."""
    processes = service.server.children().values()
    stop = threading.Event()
    with callers(service.target, 8) as clients, ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(outcome, clients.pop(), 5) for _ in range(2)]
        runs: list[Future[list[tuple[float, object]]]] = [
            pool.submit(call_until_refused, client, 20 + number, stop) for number, client in enumerate(clients)
        ]
        time.sleep(0.3)
        signalled = time.monotonic()
        service.server.terminate()
        assert service.server.popen.wait(30) == 0
        stop.set()
        assert [call.result() for call in slow] == [5, 5]
        for number, run in enumerate(runs):
            *answered, (started, refused) = run.result()
            assert {each for _, each in answered} == {20 + number}
            if not (isinstance(refused, errors.Unavailable) and "draining" in str(refused)):
                # In the instant in which gRPC stops, it cancels what has come and was not taken.
                assert isinstance(refused, errors.Unavailable | errors.Cancelled)
                assert started > signalled, f"this call was taken, and failed: {refused}"
    log = service.server.log()
    assert "Traceback" not in log, log
    assert not any(child.is_running() for child in processes)


def call_until_refused(client: Client, level: int, stop: threading.Event) -> list[tuple[float, object]]:
    outcomes: list[tuple[float, object]] = []
    while not stop.is_set():
        started = time.monotonic()
        outcomes.append((started, outcome(client, level)))
        if outcomes[-1][1] != level:
            break
    return outcomes


def test_the_only_engine_dies_recompiles_and_then_the_supervisor_is_killed() -> None:
    with (
        process(*ONE_OF_EACH, *FRAGILE, "--strict") as server,
        closing(Health(server.target)) as health,
        Client(server.target) as client,
    ):
        before = server.children()["engine-0"].pid
        watching = health.watch("")
        assert next(watching).status == SERVING
        lost = outcome(client, Fragile.LOST)
        assert isinstance(lost, errors.Unavailable)
        assert "the engine has died" in str(lost)
        assert next(watching).status == NOT_SERVING
        refused = outcome(client, 50)
        assert isinstance(refused, errors.Unavailable)
        assert "no engine is running" in str(refused)
        assert next(watching).status == SERVING
        assert outcome(client, 50) == 50
        assert server.children()["engine-0"].pid != before

        assert outcome(client, Fragile.COMPILES) == Fragile.COMPILES
        assert next(watching).status == NOT_SERVING
        assert health.check("liveness") == SERVING
        assert outcome(client, 51) == 51, "readiness is for the balancer; calls that come are answered"

        family = psutil.Process(server.popen.pid).children(recursive=True)
        assert len(family) == 3, "an engine, a frontend, and the process in which that has decoded PNGs"
        for each in (psutil.Process(server.popen.pid), *family):
            assert "/dev/shm" not in Path(f"/proc/{each.pid}/maps").read_text()
        sockets = abstract_sockets([psutil.Process(server.popen.pid), *family])
        assert len(sockets) >= 3
        os.kill(server.popen.pid, signal.SIGKILL)
        server.popen.wait(10)
        assert eventually(lambda: not any(each.is_running() for each in family), 5)
        host, _, port = server.target.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), timeout=5).close()
        left = set(re.findall(r"@warmlane-[\w-]+", Path("/proc/net/unix").read_text()))
        assert not sockets & left, "abstract sockets end with their processes"


def abstract_sockets(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses on which they listen for one another."""
    ends = [end.laddr for each in processes for end in each.net_connections("unix")]
    return set(re.findall(r"@warmlane-[\w-]+", " ".join(map(str, ends))))


@contextmanager
def slow_calls(server: Process, level: int, count: int = 2) -> Iterator[list[Future[int | errors.WarmlaneError]]]:
    """Under way, one in its forward and the others queued."""
    with callers(server.target, count) as clients, ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(outcome, client, level) for client in clients]
        time.sleep(0.4)
        assert not any(call.done() for call in calls)
        yield calls


def test_ctrl_c_drains() -> None:
    """It goes to the terminal's whole process group."""
    with process(*ONE_OF_EACH) as server, slow_calls(server, 9) as calls:
        os.killpg(server.popen.pid, signal.SIGINT)
        assert [call.result() for call in calls] == [9, 9]
        assert server.popen.wait(10) == 0
        log = server.log()
    assert "Traceback" not in log
    assert "died" not in log


def test_a_second_sigterm_ends_at_once() -> None:
    """The calls would take seven seconds."""
    with (
        process(*ONE_OF_EACH) as server,
        closing(Health(server.target)) as health,
        slow_calls(server, 9, count=8) as calls,
    ):
        family = server.children().values()
        watching = health.watch("")
        assert next(watching).status == SERVING
        server.terminate()
        assert next(watching).status == NOT_SERVING
        server.terminate()
        assert server.popen.wait(4) == 128 + 15
        assert any(isinstance(call.result(), errors.Unavailable) for call in calls)
        assert eventually(lambda: not any(each.is_running() for each in family), 5)


def test_sigterm_while_warming_up() -> None:
    with starting("--port", "0", *ONE_OF_EACH, "--model", "tests.slow_model:NeverWarm") as server:
        server.wait_until_listening()
        with closing(Health(server.target)) as health, Client(server.target) as client:
            assert health.check("") == NOT_SERVING
            with pytest.raises(errors.Unavailable, match="the engine is starting"):
                client.model()
        server.terminate()
        assert server.popen.wait(20) == 0, "the model would take longer"
        assert "Traceback" not in server.log()


def test_a_failed_start_is_one_line_and_exit_2() -> None:
    with starting("--port", "0", *ONE_OF_EACH, "--model", "tests.slow_model:BrokenWhenWarming") as server:
        assert server.popen.wait(START_S) == 2
        (line,) = (line for line in server.log().splitlines() if not re.match("[0-9-]+ [0-9:,]+ I ", line))
        assert line == "server: the model cannot run: no kernel for this"
