"""Servers for tests: `process` is `python -m server` itself, `in_process` the same parts in a thread, open to view."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import grpc
import psutil
import uvloop
from prometheus_client import REGISTRY

from pipeline.embedded import Pipeline
from server import app
from server.admin import admin_server
from server.admission import Admission
from server.build import build_pipeline
from server.front import Front
from server.settings import Settings, parse
from tests import slow_model
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.admin_pb2_grpc import AdminStub
from warmlane.v1.classifier_pb2_grpc import ClassifierStub

_ROOT = Path(__file__).parent.parent
_PATH = os.pathsep.join([str(_ROOT), str(_ROOT / "protos")])


@dataclass
class Process:
    """A running `python -m server`."""

    popen: subprocess.Popen[str]
    stderr: IO[str]
    target: str = ""

    def wait_until_listening(self) -> None:
        self.target = self._line("listening on (.*)")

    def wait_until_serving(self) -> None:
        self._line("serving (.*)")

    def _line(self, pattern: str) -> str:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if found := re.match(pattern, line):
                return found[1].strip()
        raise AssertionError(f"the server ended with {self.popen.wait()}: {self.log()}")

    def log(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()

    def terminate(self) -> None:
        self.popen.send_signal(signal.SIGTERM)

    def children(self) -> dict[str, psutil.Process]:
        """Frontends and engines by their place, such as "engine-0"."""
        found = {}
        for child in psutil.Process(self.popen.pid).children():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "server.child" in (line := child.cmdline()):
                    found["-".join(line[-2:])] = child
        return found

    def memory_bytes(self) -> int:
        """What it has allocated, resident or swapped; not the pages of libraries, which come and go with the cache."""
        status = Path(f"/proc/{self.popen.pid}/status").read_text()
        kib = re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB$", status, re.MULTILINE)
        return 1024 * sum(map(int, kib))


@contextmanager
def starting(*flags: str, **environment: str) -> Iterator[Process]:
    """A server that may not be listening yet, or may never."""
    command_line = [sys.executable, "-m", "server", "--no-compile", *flags]
    env = {**os.environ, "PYTHONPATH": _PATH, **environment}
    with (
        tempfile.TemporaryFile("w+") as stderr,
        # A process group of its own, which can be interrupted like a terminal's.
        subprocess.Popen(
            command_line, stdout=subprocess.PIPE, stderr=stderr, text=True, env=env, cwd=_ROOT, process_group=0
        ) as popen,
    ):
        try:
            yield Process(popen, stderr)
        finally:
            popen.kill()


@contextmanager
def process(*flags: str) -> Iterator[Process]:
    """A server on a free port that has warmed up."""
    with starting("--port", "0", *flags) as server:
        server.wait_until_listening()
        server.wait_until_serving()
        yield server


@dataclass
class InProcess:
    """A server in a thread."""

    target: str
    pipeline: Pipeline
    admission: Admission
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event
    warm: Future[None]

    def stop(self) -> None:
        """As SIGTERM does."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.stopping.set)

    def run(self, function: Callable[[], Any]) -> Any:
        """Call `function` on the event loop's thread."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def slots_in_use(self) -> int:
        return self.pipeline.slots.in_use


@contextmanager
def in_process(*flags: str, wait_until_warm: bool = True, drain_s: float = 10.0) -> Iterator[InProcess]:
    """A server of `tests.slow_model:Levels` with one forward thread."""
    slow_model.seen.clear()
    one_lane = ("--threads", "1", "--lanes", "1")
    settings = settings_of(
        "--port", "0", "--no-compile", *one_lane, "--drain-s", str(drain_s), *slow_model.FLAGS, *flags
    )
    started: Future[InProcess] = Future()
    thread = threading.Thread(target=_run, args=(settings, started), name="server")
    thread.start()
    server = started.result(60)
    try:
        if wait_until_warm:
            server.warm.result(60)
        yield server
    finally:
        slow_model.gate.set()
        slow_model.warm_gate.set()
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the server did not stop"


def settings_of(*flags: str) -> Settings:
    """What `python -m server` makes of its command line."""
    return parse(flags)


def _run(settings: Settings, started: Future[InProcess]) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, started))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(settings: Settings, started: Future[InProcess]) -> None:
    """As `server.app.serve`, with an event in the place of signals."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    front = Front(settings)
    port = front.listen(settings.port)
    pipeline = build_pipeline(settings)
    front.answer_with(pipeline)
    admin = admin_server(pipeline, settings.admin_port)
    await admin.start()
    await front.server.start()
    warm: Future[None] = Future()
    started.set_result(InProcess(f"127.0.0.1:{port}", pipeline, front.admission, loop, stop, warm))
    await asyncio.wrap_future(pipeline.start())
    front.set_serving(True)
    warm.set_result(None)
    await stop.wait()
    await admin.stop(0)
    await app.stop(front, pipeline)


@contextmanager
def raw_stub(target: str) -> Iterator[ClassifierStub]:
    """Calls without our client, and without limits on what may be sent."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(target, options) as channel:
        yield ClassifierStub(channel)


@contextmanager
def calling(target: str, image: bytes, callers: int = 2) -> Iterator[None]:
    """Callers of a server, one request after the other, for as long as the block lasts."""
    stop = threading.Event()

    def call() -> None:
        with raw_stub(target) as stub:
            while not stop.is_set():
                stub.Classify(ask(image))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def admin_stub(target: str) -> Iterator[AdminStub]:
    """Admin calls, of traces of any size."""
    with grpc.insecure_channel(target, [("grpc.max_receive_message_length", -1)]) as channel:
        yield AdminStub(channel)


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def dropped(stage: str, *reasons: str) -> float:
    """How many requests a stage of this process has dropped so far."""
    samples = ({"stage": stage, "reason": reason} for reason in reasons)
    return sum(REGISTRY.get_sample_value("warmlane_dropped_total", sample) or 0.0 for sample in samples)


def ask(image: bytes) -> pb.ClassifyRequest:
    return pb.ClassifyRequest(image=image, top_k=1)


def top(response: pb.ClassifyResponse) -> int:
    return response.predictions[0].index


def wait_until_open_calls(server: InProcess, number: int) -> None:
    assert eventually(lambda: server.run(lambda: server.admission._open_calls) == number)
