"""Profiles of a running server, asked for on the port that only its own machine can reach."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest

from bench.live import read
from bench.ports import free_port
from pipeline import profiling
from pipeline.profiling import FORWARD_MARK
from tests import slow_model
from tests.serving import (
    InProcess,
    admin_stub,
    ask,
    calling,
    eventually,
    in_process,
    process,
    raw_stub,
    settings_of,
    starting,
)
from tests.slow_model import FLAGS, solid
from warmlane.v1 import admin_pb2 as pb

TINY = ("--model", "tests.tiny_model:layers", "--resize", "36", "--crop", "32")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[InProcess, int]]:
    """A server that tests leave as they found it, and its admin port."""
    port = free_port()
    with in_process("--admin-port", str(port)) as server:
        yield server, port


@pytest.fixture
def server(shared: tuple[InProcess, int]) -> InProcess:
    return shared[0]


@pytest.fixture
def admin(shared: tuple[InProcess, int]) -> int:
    return shared[1]


def profile(port: int, batches: int, timeout_s: float = 0.0) -> bytes:
    with admin_stub(f"127.0.0.1:{port}") as stub:
        trace: bytes = stub.Profile(pb.ProfileRequest(batches=batches, timeout_s=timeout_s), timeout=60).trace
    return trace


def refused(call: Callable[[], object]) -> grpc.Call:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert isinstance(caught.value, grpc.Call)
    return caught.value


def test_a_real_server_profiles_itself_under_load(port: int) -> None:
    with process("--admin-port", str(port), *TINY) as server, calling(server.target, solid(40)):
        found = read(profile(port, batches=30))
        again = read(profile(port, batches=5))
    work = found.work
    assert work.batches >= 30
    assert work.images >= work.batches
    assert work.cpu_seconds > 0
    forwards = [event for event in found.events if event.name == FORWARD_MARK]
    assert work.batches - 2 <= len(forwards) <= work.batches + 2  # one may straddle either end
    assert {event.name for event in found.events if event.kind == "op"} >= {"aten::conv2d", "aten::linear"}
    assert again.work.batches >= 5


def test_answers_stay_right_while_a_profile_is_recorded(server: InProcess, admin: int) -> None:
    with raw_stub(server.target) as stub:
        recording = threading.Thread(target=profile, args=(admin, 1000, 1.0))
        recording.start()
        assert eventually(profiling._recording.locked)
        while recording.is_alive():
            assert stub.Classify(ask(solid(77))).predictions[0].index == 77
        recording.join()


def test_an_idle_server_has_an_empty_profile(server: InProcess, admin: int) -> None:
    assert read(profile(admin, batches=5, timeout_s=0.2)).work.batches == 0


def test_the_public_port_knows_no_admin_calls(server: InProcess) -> None:
    public = int(server.target.rpartition(":")[2])
    assert refused(lambda: profile(public, batches=5)).code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_admin_port_knows_no_images(server: InProcess, admin: int) -> None:
    with raw_stub(f"127.0.0.1:{admin}") as stub:
        assert refused(lambda: stub.Classify(ask(solid(40)))).code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_admin_port_is_on_the_loopback_address_whatever_the_host(port: int) -> None:
    with in_process("--admin-port", str(port), "--host", "0.0.0.0"):
        with socket.create_connection(("127.0.0.1", port), 5):
            pass
        # All of 127/8 is this machine's own: what listens on any address would answer here.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 5)


@pytest.mark.parametrize(
    ("batches", "timeout_s", "told"),
    [
        (0, 1, "batches is 0; it must be 1 to 1000"),
        (-3, 1, "batches is -3"),
        (1001, 1, "batches is 1001"),
        (5, -1, "timeout_s is -1; it must be over 0 and at most 300"),
        (5, 301, "timeout_s is 301"),
        (5, float("nan"), "timeout_s is nan"),
    ],
)
def test_a_profile_out_of_range_is_refused(
    server: InProcess, admin: int, batches: int, timeout_s: float, told: str
) -> None:
    error = refused(lambda: profile(admin, batches, timeout_s))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert told in str(error.details())
    assert "x-request-id" in dict(error.trailing_metadata())


def test_a_second_profile_meanwhile_is_refused(server: InProcess, admin: int) -> None:
    first = threading.Thread(target=profile, args=(admin, 1000, 1.0))
    first.start()
    assert eventually(profiling._recording.locked)
    error = refused(lambda: profile(admin, batches=5))
    first.join()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "one at a time" in str(error.details())
    assert read(profile(admin, batches=5, timeout_s=0.1)).work.batches == 0  # and now there is room again


def test_a_caller_who_leaves_ends_the_profile(server: InProcess, admin: int) -> None:
    with admin_stub(f"127.0.0.1:{admin}") as stub:
        call = stub.Profile.future(pb.ProfileRequest(batches=1000, timeout_s=300))
        assert eventually(profiling._recording.locked)
        call.cancel()
        assert eventually(lambda: not profiling._recording.locked())


def test_a_profile_before_the_engine_is_warm(port: int) -> None:
    slow_model.warm_gate.clear()
    with in_process("--admin-port", str(port), wait_until_warm=False):
        assert refused(lambda: profile(port, batches=5)).code() is grpc.StatusCode.UNAVAILABLE


def test_sigterm_ends_a_profile_and_the_server(port: int) -> None:
    with process("--admin-port", str(port), *FLAGS) as server, admin_stub(f"127.0.0.1:{port}") as stub:
        call = stub.Profile.future(pb.ProfileRequest(batches=1000, timeout_s=300))
        time.sleep(0.5)
        server.terminate()
        assert server.popen.wait(20) == 0
        assert call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_a_taken_admin_port_stops_the_start_with_one_line(port: int) -> None:
    with (
        socket.create_server(("127.0.0.1", port)),
        starting("--port", "0", "--admin-port", str(port), *FLAGS) as server,
    ):
        assert server.popen.wait(60) == 2
        assert f"server: cannot listen on 127.0.0.1:{port}: is it taken? (--admin-port)" in server.log()


def test_no_admin_port_by_default() -> None:
    assert settings_of().admin_port == 0


def test_an_engine_in_another_process_is_profiled(port: int) -> None:
    with process("--admin-port", str(port), "--frontends", "1", *TINY) as server, calling(server.target, solid(40)):
        found = read(profile(port, batches=20))
        assert found.work.batches >= 20
        assert any(event.name == FORWARD_MARK for event in found.events)

        with admin_stub(f"127.0.0.1:{port}") as stub:
            long = stub.Profile.future(pb.ProfileRequest(batches=1000, timeout_s=300))
            time.sleep(1.0)  # nobody outside the engine can see when it has begun
            error = refused(lambda: profile(port, batches=1))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            long.cancel()
        assert eventually(lambda: can_profile(port))


def can_profile(port: int) -> bool:
    try:
        profile(port, batches=1, timeout_s=5)
    except grpc.RpcError:
        return False
    return True
