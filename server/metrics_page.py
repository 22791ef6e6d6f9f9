"""The page that Prometheus reads: what has been counted, and what each process costs."""

import threading
from collections.abc import Callable, Iterable, Mapping

import psutil
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_HOST = "127.0.0.1"
_LABELS = ("role", "process")

Processes = Callable[[], Mapping[str, int]]


class MetricsPage:
    """http://127.0.0.1:PORT/metrics, served by a thread.

    Args:
        port: 0 takes a free one.
        counted: the metrics.
        processes: ids of the processes whose cost is told, by name such as "engine-0"; asked for at each scrape, from
            another thread.

    Attributes:
        port: that is listened on.

    Raises:
        OSError: the port cannot be had; the message is one line for users.
    """

    def __init__(self, port: int, counted: Collector, processes: Processes) -> None:
        registry = CollectorRegistry()
        registry.register(counted)
        registry.register(ProcessCollector(processes))
        try:
            self._server, self._thread = start_http_server(port, _HOST, registry)
        except OSError as error:
            raise OSError(f"cannot listen on {_HOST}:{port}: {error.strerror} (--metrics-port)") from None
        self.port = self._server.server_port

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def role_of(process: str) -> str:
    """The role in a process's name: "engine" of "engine-0"."""
    return process.partition("-")[0]


class ProcessCollector(Collector):
    """CPU time and memory of each process. CPU time adds up over restarts; what a process used after the last scrape
    of its life is lost."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._spent: dict[str, _Spent] = {}
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector`."""
        cpu = CounterMetricFamily("warmlane_process_cpu_seconds", "CPU time of a process.", labels=_LABELS)
        resident = GaugeMetricFamily("warmlane_process_resident_bytes", "Memory of a process.", labels=_LABELS)
        with self._lock:
            for name, pid in self._processes().items():
                usage = _usage(pid)
                if usage is not None:
                    self._spent.setdefault(name, _Spent(pid)).note(pid, usage[0])
                    resident.add_metric([role_of(name), name], usage[1])
            for name, spent in self._spent.items():
                cpu.add_metric([role_of(name), name], spent.total_s)
        return [cpu, resident]


class _Spent:
    """CPU seconds of one place, over the processes that have filled it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before_s = self._now_s = 0.0

    @property
    def total_s(self) -> float:
        return self._before_s + self._now_s

    def note(self, pid: int, seconds: float) -> None:
        if pid != self._pid:
            self._pid, self._before_s = pid, self.total_s
        self._now_s = seconds


def _usage(pid: int) -> tuple[float, int] | None:
    """CPU seconds, and resident bytes; None of a dead process."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return times.user + times.system, process.memory_info().rss
    except psutil.NoSuchProcess:
        return None
