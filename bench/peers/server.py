"""A peer's server as a process of its own, with all processes that it starts."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import psutil

from bench.peers.catalog import Peer
from bench.peers.install import Environment, PeerError
from bench.peers.setup import Setup
from bench.peers.wires import CallError, Wire, open_line
from bench.service import ROOT, python_path

_POLL_S = 0.1
_STOP_S = 20.0
_KILL_S = 3.0
_SHOWN_BYTES = 1500


class Server:
    """A server that answers, for as long as the `with` block lasts.

    Args:
        cache: folder of compiled code; a fresh one for a cold start.
        probe: a file to ask about, until there is an answer.

    Attributes:
        wire: how to call it.
        start_s: seconds from the start of the process to its first answer.

    Raises:
        PeerError: on entering, if it ends or does not answer in time.
    """

    def __init__(
        self, peer: Peer, environment: Environment, setup: Setup, cache: Path, probe: bytes, timeout_s: float = 600.0
    ) -> None:
        self._command = [environment.python, *peer.command(setup)]
        self._environment = {**_variables(environment, setup, cache), **peer.environment}
        self._probe = probe
        self._timeout_s = timeout_s
        self.wire: Wire = replace(peer.wire, port=setup.port, own_ports=setup.own_ports)
        self.start_s = 0.0

    def __enter__(self) -> Self:
        self._log = tempfile.NamedTemporaryFile(prefix="warmlane-peer-", suffix=".log")
        started_s = time.monotonic()
        try:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"cannot be started: {error}") from None
        try:
            self._wait_for_an_answer(started_s)
        except BaseException:
            self._end()
            raise
        self.start_s = time.monotonic() - started_s
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """CPU time that its processes have used so far, and those that have ended and were waited for."""
        used = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum(process.cpu_times()[:4])
        return used

    def rss_bytes(self) -> float:
        """Resident memory, added up over its processes; what they share counts for each."""
        used = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                used += process.memory_info().rss
        return used

    def process_count(self) -> int:
        """How many processes it has."""
        return len(self._processes())

    def log_tail(self) -> str:
        """The end of what it wrote."""
        return Path(self._log.name).read_bytes()[-_SHOWN_BYTES:].decode(errors="replace").strip()

    def ask(self, files: Sequence[bytes]) -> list[int]:
        """The best class of each file, asked for one after the other.

        Raises:
            PeerError: one is not answered.
        """
        try:
            return asyncio.run(_ask(self.wire, files))
        except CallError as error:
            raise PeerError(f"does not answer a sample photograph: {error}\n{self.log_tail()}") from None

    def _wait_for_an_answer(self, started_s: float) -> None:
        while True:
            with contextlib.suppress(CallError, TimeoutError):
                asyncio.run(_ask(self.wire, [self._probe], started_s + self._timeout_s - time.monotonic()))
                return
            if self._process.poll() is not None:
                raise PeerError(f"ended with exit code {self._process.returncode}\n{self.log_tail()}")
            if time.monotonic() - started_s > self._timeout_s:
                raise PeerError(f"no answer after {self._timeout_s:.0f} s\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _processes(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _end(self) -> None:
        """SIGTERM to the first process, in time to those of the tree that it has left, and then they are killed."""
        tree = self._processes()
        self._process.send_signal(signal.SIGTERM)
        with self._log, contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        _, alive = psutil.wait_procs(_each(tree, psutil.Process.terminate), _KILL_S)
        _each(alive, psutil.Process.kill)
        self._process.wait()


def compile_beforehand(environment: Environment, setup: Setup, cache: Path) -> None:
    """Fill a cache with what the peers' classifier compiles.

    Raises:
        PeerError: it cannot.
    """
    command = [environment.python, "-m", "bench.peers.classifier"]
    variables = _variables(environment, setup, cache)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"the model could not be compiled\n{done.stderr[-_SHOWN_BYTES:]}")


def _variables(environment: Environment, setup: Setup, cache: Path) -> dict[str, str]:
    """Of a process that serves."""
    return {
        **os.environ,
        "PYTHONPATH": python_path(),
        "PATH": os.pathsep.join([str(Path(environment.python).parent), os.environ.get("PATH", os.defpath)]),
        **setup.environment(),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "WARMLANE_COMPILE_CACHE": str(cache / "warmlane"),
    }


def _each(processes: Sequence[psutil.Process], act: Callable[[psutil.Process], None]) -> list[psutil.Process]:
    """Those that lived, and have been told."""
    told = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                act(process)
                told.append(process)
    return told


async def _ask(wire: Wire, files: Sequence[bytes], timeout_s: float | None = None) -> list[int]:
    async with asyncio.timeout(timeout_s), open_line(wire, 1) as line:
        return [await line.call(line.encode(file)) for file in files]
