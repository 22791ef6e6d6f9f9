"""The server as a user would start it: a process of its own, on a free port."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

from bench.children import as_child
from server.settings import parse
from warmlane.client import Client
from warmlane.errors import WarmlaneError

ROOT = Path(__file__).parent.parent
_LISTENING = re.compile(r"^(?:each frontend alone:|listening on) (\S+)")
_POLL_S = 0.05
_SHOWN_BYTES = 4000

T = TypeVar("T")
Progress = Callable[[float, str], None]


def with_own_ports(args: Sequence[str]) -> list[str]:
    """Settings of a server, with a port for each of its frontends: through a shared one, chance spreads the load."""
    settings = parse(args)
    several = settings.frontends > 1 and settings.frontend_port is None
    return [*args, "--frontend-port", "0"] if several else list(args)


class ServiceError(RuntimeError):
    """The server did not start, or did not end as it should; the message holds the end of its log."""


class Service:
    """A server of its own for as long as the `with` block lasts.

    Args:
        args: command-line settings of the server, such as `["--threads", "2"]`.
        environment: variables to add to this process's.
        progress: called every 50 ms until it serves, with the seconds since the start and the end of the log.
        start_timeout_s: seconds until it must serve.
        stop_timeout_s: seconds that it may take to end after SIGTERM.

    Attributes:
        target: "127.0.0.1:port", or all the frontends' own ports where they have some.
        start_s: seconds from the start of the process to SERVING.

    Raises:
        ServiceError: on entering, if it does not serve in time; on leaving, if it does not end with exit code 0.
    """

    def __init__(
        self,
        args: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        start_timeout_s: float = 300.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        self._command = [sys.executable, "-m", "server", "--host", "127.0.0.1", "--port", "0", *args]
        self._environment = {**os.environ, "PYTHONPATH": python_path(), **(environment or {})}
        self._progress = progress or (lambda elapsed_s, log_tail: None)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self.target = ""
        self.start_s = 0.0

    def __enter__(self) -> Self:
        self._log = tempfile.NamedTemporaryFile(prefix="warmlane-server-", suffix=".log")
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, env=self._environment, text=True, stdout=subprocess.PIPE, stderr=self._log
        )
        self._reader = threading.Thread(target=self._read_stdout, name="service-stdout", daemon=True)
        self._reader.start()
        try:
            self._wait_until_serving()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            code = self._stop()
            if code != 0 and kind is None:
                raise ServiceError(f"the server ended with exit code {code}\n{self.log_tail()}")
        finally:
            self._kill()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def rss_bytes(self) -> float:
        """Resident memory of the server and its children."""
        return sum(_of_living(self.pid, lambda process: process.memory_info().rss))

    def pss_bytes(self) -> float:
        """Memory of the server and its children; what some of them share counts once."""
        return sum(_of_living(self.pid, lambda process: process.memory_full_info().pss))

    def cpu_seconds(self) -> float:
        """CPU time that the server and its living children have used so far."""
        return sum(self.cpu_by_process().values())

    def cpu_by_process(self) -> dict[str, float]:
        """CPU seconds that each living process of the server has used so far, by name, such as "frontend-0"."""
        return dict(_of_living(self.pid, lambda process: (_name(process), sum(process.cpu_times()[:2]))))

    def log_tail(self) -> str:
        """The end of what the server wrote to its standard error."""
        return Path(self._log.name).read_bytes()[-_SHOWN_BYTES:].decode(errors="replace").strip()

    def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            listening = _LISTENING.match(line)
            # What is balanced over the frontends' own ports is told first.
            if listening and not self.target:
                self.target = listening[1]

    def _wait_until_serving(self) -> None:
        self._wait_for(lambda: bool(self.target))
        with Client(self.target, timeout_s=5.0) as client:
            self._wait_for(lambda: _serves(client))
        self.start_s = time.monotonic() - self._started

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            elapsed_s = time.monotonic() - self._started
            if self._process.poll() is not None:
                raise ServiceError(f"the server ended with exit code {self._process.returncode}\n{self.log_tail()}")
            if elapsed_s > self._start_timeout_s:
                raise ServiceError(f"the server does not serve after {elapsed_s:.0f} s\n{self.log_tail()}")
            self._progress(elapsed_s, self.log_tail())
            time.sleep(_POLL_S)

    def _stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            raise ServiceError(f"the server did not end in {self._stop_timeout_s:.0f} s\n{self.log_tail()}") from None

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


def _name(process: psutil.Process) -> str:
    child = as_child(process)
    return child.name if child else f"server-{process.pid}"


def _of_living(pid: int, measure: Callable[[psutil.Process], T]) -> Iterator[T]:
    """What `measure` says of a process and each of its children that has not ended meanwhile."""
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield measure(process)


def _serves(client: Client) -> bool:
    try:
        return client.health() == "SERVING"
    except WarmlaneError:
        return False


def python_path() -> str:
    """Where `server` and `warmlane` are found without being installed."""
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT), str(ROOT / "protos"), *([inherited] if inherited else [])])
