"""From the first line to the exit status: health, reflection, draining, and starts that fail in one line."""

import asyncio
import gc
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from bench.ports import free_port
from server.app import serve
from server.startup import StartError
from tests import slow_model
from tests.serving import eventually, in_process, process, raw_stub, settings_of, starting
from tests.slow_model import FLAGS, solid
from warmlane import errors
from warmlane.client import Client
from warmlane.v1 import classifier_pb2 as pb

SERVICE = "warmlane.v1.Classifier"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# Whatever the machine has: an image waits for the one before.
ONE_AT_A_TIME = ("--lanes", "1", "--batch-size", "1")
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """`grpc.health.v1` without our client."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target)
        self._stub = health_pb2_grpc.HealthStub(self._channel)

    def check(self, name: str) -> Any:
        return self._stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status

    def watch(self, name: str) -> Any:
        return self._stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with in_process() as server:
        yield server.target


@pytest.mark.parametrize("name", ["", SERVICE])
def test_health_follows_the_warm_up(name: str) -> None:
    slow_model.warm_gate.clear()
    with (
        in_process(wait_until_warm=False) as server,
        closing(Health(server.target)) as health,
        Client(server.target) as client,
    ):
        watching, leaving = health.watch(name), health.watch(name)
        assert [next(watching).status, next(leaving).status] == [NOT_SERVING] * 2
        assert health.check(name) == NOT_SERVING
        assert health.check("liveness") == SERVING
        for call in (client.model, lambda: client.classify(solid(50)), lambda: client.classify_batch([solid(50)])):
            with pytest.raises(errors.Unavailable, match="the engine is starting"):
                call()
        # The others must still be told after one watcher has left.
        leaving.cancel()
        slow_model.warm_gate.set()
        assert next(watching).status == SERVING
        assert health.check(name) == SERVING
        assert client.classify(solid(50)).predictions[0].index == 50


def test_an_unknown_health_name(target: str) -> None:
    with closing(Health(target)) as health:
        with pytest.raises(grpc.RpcError) as refused:
            health.check("nobody")
        error: Any = refused.value
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert next(health.watch("nobody")).status == UNKNOWN


def test_reflection_lists_and_describes_the_services(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(database.get_services()) >= {SERVICE, "grpc.health.v1.Health"}
        found = database.FindFileContainingSymbol(SERVICE)
    methods = {method.name for service in found.service for method in service.method}
    assert methods == {"Classify", "ClassifyBatch", "ClassifyStream", "GetModel"}


def test_reflection_of_raw_stubs(target: str) -> None:
    with grpc.insecure_channel(target) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
    assert SERVICE in {service.name for service in answer.list_services_response.service}


class OpenStream:
    """A ClassifyStream that stays open until `close`; what came of it lies in `answers` and `error`."""

    def __init__(self, target: str) -> None:
        self.answers: list[pb.ClassifyStreamResponse] = []
        self.error: Any = None
        self._requests: SimpleQueue[pb.ClassifyStreamRequest | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(target,))
        self._thread.start()

    def send(self, number: int, image: bytes) -> None:
        self._requests.put(pb.ClassifyStreamRequest(id=number, request=pb.ClassifyRequest(image=image)))

    def close(self) -> None:
        self._requests.put(None)
        self._thread.join(20)

    def wait_until_ended(self) -> None:
        assert eventually(lambda: self.error is not None, 15)

    def _run(self, target: str) -> None:
        with raw_stub(target) as stub:
            try:
                for answer in stub.ClassifyStream(iter(self._requests.get, None)):
                    self.answers.append(answer)
            except grpc.RpcError as error:
                self.error = error


@pytest.fixture
def metrics_port() -> int:
    return free_port()


def test_sigterm_drains(metrics_port: int) -> None:
    with (
        process(*FLAGS, *ONE_AT_A_TIME, "--metrics-port", str(metrics_port)) as server,
        Client(server.target) as client,
        closing(Health(server.target)) as health,
        closing(OpenStream(server.target)) as idle,
        closing(OpenStream(server.target)) as busy,
        ThreadPoolExecutor() as callers,
    ):
        watching = health.watch("")
        assert next(watching).status == SERVING
        idle.send(1, solid(101))
        assert eventually(lambda: len(idle.answers) == 1)
        first = callers.submit(client.classify, solid(9))
        second = callers.submit(client.classify, solid(9))
        assert eventually(lambda: slots_in_use(metrics_port) == 1), (
            "one in its forward, which needs no slot, one queued"
        )
        batch = callers.submit(client.classify_batch, [solid(8), solid(60)])
        busy.send(7, solid(5))
        busy.send(8, solid(102))
        assert eventually(lambda: slots_in_use(metrics_port) >= 4)

        server.terminate()
        assert next(watching).status == NOT_SERVING
        with pytest.raises(errors.Unavailable, match="draining") as refused:
            client.classify(solid(50), request_id="too-late")
        assert type(refused.value) is errors.Unavailable, "refused with its request id, not for a closed port"
        assert refused.value.request_id == "too-late"

        assert [call.result(20).predictions[0].index for call in (first, second)] == [9, 9]
        assert [outcome.predictions[0].index for outcome in batch.result(20)] == [8, 60]  # type: ignore[union-attr]
        busy.wait_until_ended()
        idle.wait_until_ended()
        assert {answer.id: top_class(answer) for answer in busy.answers} == {7: 5, 8: 102}
        for stream in (busy, idle):
            assert stream.error.code() is grpc.StatusCode.UNAVAILABLE
            assert "draining" in stream.error.details()
            assert "x-request-id" in dict(iter(stream.error.trailing_metadata()))
        # Neither the idle stream nor the health watcher holds it for the 30 s that a drain may take.
        assert server.popen.wait(10) == 0
        assert "Traceback" not in server.log()


def top_class(answer: pb.ClassifyStreamResponse) -> int:
    return answer.result.response.predictions[0].index


def slots_in_use(metrics_port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as page:
        found = re.search(r"^warmlane_slots_in_use (\S+)$", page.read().decode(), re.MULTILINE)
    assert found
    return float(found[1])


def test_drain_s_ends_calls_that_take_longer() -> None:
    slow_model.gate.clear()
    with in_process(drain_s=0.2) as server, ThreadPoolExecutor() as callers, Client(server.target) as client:
        held = callers.submit(client.classify, solid(slow_model.HELD))
        assert eventually(lambda: slow_model.HELD in slow_model.seen)
        server.stop()
        with pytest.raises((errors.Unavailable, errors.Cancelled)):
            held.result(10)
        slow_model.gate.set()


def test_a_second_signal_ends_at_once() -> None:
    with process(*FLAGS, *ONE_AT_A_TIME) as server, ThreadPoolExecutor() as callers:
        slow = [callers.submit(classify_until_gone, server.target, solid(9)) for _ in range(8)]
        health = Health(server.target)
        watching = health.watch("")
        assert next(watching).status == SERVING
        time.sleep(0.3)
        server.terminate()
        assert next(watching).status == NOT_SERVING
        health.close()
        server.terminate()
        assert server.popen.wait(4) == 128 + 15, "the calls would take seven seconds"
        assert any(isinstance(call.result(), errors.Unavailable) for call in slow)


def classify_until_gone(target: str, image: bytes, images: int = 1) -> object:
    with Client(target) as client:
        try:
            return client.classify(image) if images == 1 else client.classify_batch([image] * images)
        except errors.WarmlaneError as error:
            return error


def test_sigterm_while_warming_up() -> None:
    with starting("--port", "0", *FLAGS, "--model", "tests.slow_model:NeverWarm") as server:
        server.wait_until_listening()
        with closing(Health(server.target)) as health:
            assert health.check("") == NOT_SERVING
        server.terminate()
        assert server.popen.wait(20) == 0, "the model would take longer"
        assert "Traceback" not in server.log()


def test_a_device_that_hangs_ends_the_process() -> None:
    """There is no other process that could; whatever has started it starts it anew."""
    with (
        starting("--port", "0", *FLAGS, "--batch-size", "8", "--engine-timeout-s", "1") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        server.wait_until_listening()
        server.wait_until_serving()
        # A forward of 4.5 s.
        called = pool.submit(classify_until_gone, server.target, solid(9), 5)
        assert server.popen.wait(30) == 1
        assert isinstance(called.result(), errors.Unavailable)
        assert re.search(r"the device has hung for [12]\.\d s \(--engine-timeout-s\): this process ends", server.log())


def test_a_failed_start_is_one_line_and_exit_2(taken_port: int) -> None:
    with (
        starting("--port", str(taken_port)) as busy_port,
        starting("--port", "0", "--model", "nosuchmodel") as unknown_model,
    ):
        assert busy_port.popen.wait(60) == 2
        assert busy_port.log() == f"server: cannot listen on 127.0.0.1:{taken_port}: is it taken? (--host, --port)\n"
        assert unknown_model.popen.wait(60) == 2
        assert re.fullmatch("server: unknown model 'nosuchmodel': it can be .*\n", unknown_model.log())


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_a_taken_metrics_port(taken_port: int) -> None:
    settings = settings_of("--port", "0", "--no-compile", *FLAGS, "--metrics-port", str(taken_port))
    with pytest.raises(StartError, match=rf"127.0.0.1:{taken_port}: Address already in use \(--metrics-port\)"):
        asyncio.run(serve(settings))


def test_a_model_that_cannot_warm_up() -> None:
    settings = settings_of("--port", "0", "--no-compile", *FLAGS, "--model", "tests.slow_model:BrokenWhenWarming")
    with pytest.raises(StartError, match="the model cannot run: no kernel for this"):
        asyncio.run(serve(settings))
    # A gRPC server that was not stopped complains from its finalizer, which fails the test.
    gc.collect()
