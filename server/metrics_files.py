"""The metrics of several processes: prometheus_client's multiprocess form, whose files outlive restarts.

    supervisor    files = prepare()                   before anything imports `pipeline.metrics` or starts a child
                  page = files.serve(port, pids)      `pids()` names the living: {"supervisor": 7, "engine-0": 9}
                  files.forget("engine-0")            when that child has been reaped, before another takes its place
                  files.count_restart("engine-0")     when another has taken it
                  page.close(), files.close()
    child         adopt("engine-0")                   before anything imports `pipeline.metrics`

A name is a role, a hyphen and a number. A child that is spawned imports the module of its target first, so that module
must import the rest of the server only after `adopt`.

Each process counts in files of its own, named after its place and not after its process id: a restarted one goes on
where the one before stopped, so there are never more files than places and no counter falls. Values lie in mapped
memory, which outlives a kill -9; only the answers of the last quarter of a second are lost (`pipeline.metrics.flush`).
"""

import fcntl
import json
import logging
import math
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict, _read_all_values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from server.metrics_page import MetricsPage, Processes, role_of

log = logging.getLogger(__name__)

# Where prometheus_client looks for the folder, and how a child learns of it.
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX = "warmlane-metrics-"
_FLUSH_S = 0.25
# What prometheus_client raises on reading a damaged file.
_DAMAGE = (struct.error, RuntimeError, ValueError)


class MetricsFiles:
    """The folder of one supervisor and its children; see `prepare`. Locked, so that one left behind can be told."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def collector(self) -> "FilesCollector":
        """The sum over all processes."""
        return FilesCollector(self.folder)

    def serve(self, port: int, processes: Processes) -> MetricsPage:
        """Serve the sum, and what each process costs; see `MetricsPage`."""
        return MetricsPage(port, self.collector(), processes)

    def forget(self, process: str) -> None:
        """Drop the gauges of a dead process; its counters stay. Never while one with that name runs."""
        mark_process_dead(process, str(self.folder))

    def count_restart(self, process: str) -> None:
        """Count that a process was started in the place of a dead one."""
        from pipeline import metrics

        metrics.PROCESS_RESTARTS.labels(role_of(process)).inc()

    def close(self) -> None:
        """Remove the folder. Children that still run go on counting, for nobody."""
        os.environ.pop(VARIABLE, None)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def prepare(parent: Path | None = None) -> MetricsFiles:
    """Make a fresh folder, name it to future children through the environment, and count here as "supervisor".

    Folders that dead supervisors have left behind are removed.

    Args:
        parent: where the folder goes; None for the system's temporary folder.
    """
    parent = parent or Path(tempfile.gettempdir())
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_if_left_behind(left)
    folder, lock = _locked_folder(parent)
    os.environ[VARIABLE] = str(folder)
    adopt("supervisor")
    return MetricsFiles(folder, lock)


def adopt(process: str) -> None:
    """Count in the files of `process` from now on, going on where a dead one of that name has stopped.

    Counts in memory, as ever, where no supervisor has prepared files.

    Args:
        process: such as "frontend-0"; no two that live may share one.
    """
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    assert "_" not in process, "prometheus_client parses file names by it"
    assert "pipeline.metrics" not in sys.modules, "metrics that exist already count elsewhere"
    mark_process_dead(process, folder)
    for file in Path(folder).glob(f"*_{process}.db"):
        mend(file)
    values.ValueClass = values.MultiProcessValue(lambda: process)
    # Only now, since a metric takes its kind of value when it is made.
    from pipeline import metrics

    metrics.flush_every(_FLUSH_S)


class FilesCollector(MultiProcessCollector):
    """The files of all processes added up. A damaged one counts as far as it can be read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(None, str(folder))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client.registry.Collector`."""
        folder = Path(self._path)
        try:
            return self._sum(folder)
        except _DAMAGE as error:
            log.warning("a metrics file is damaged, until its process is started again: %s", error)
        with tempfile.TemporaryDirectory(prefix="warmlane-") as copies:
            for file in folder.glob("*.db"):
                with suppress(FileNotFoundError):  # a gauge that has been forgotten meanwhile
                    mend(Path(shutil.copy(file, copies)))
            return self._sum(Path(copies))

    def _sum(self, folder: Path) -> Iterable[Metric]:
        metrics: Iterable[Metric] = MultiProcessCollector.merge([str(file) for file in folder.glob("*.db")])
        return metrics


def mend(file: Path) -> None:
    """Write a damaged file of values anew, with all that can be read of it. Of a process that lives, never."""
    entries, whole = _entries(file.read_bytes())
    if whole:
        return
    scratch = file.with_suffix(".mending")
    scratch.unlink(missing_ok=True)
    fresh = MmapedDict(str(scratch))
    for key, value in entries.items():
        fresh.write_value(key, value, 0.0)
    fresh.close()
    scratch.replace(file)


def _entries(data: bytes) -> tuple[dict[str, float], bool]:
    """Key to value, up to the first entry that makes no sense, and whether there is none such.

    `MmapedDict` describes the form: how many bytes are used, then the entries.
    """
    used = int.from_bytes(data[:4], sys.byteorder)
    sound = 8 <= used <= len(data)
    entries: dict[str, float] = {}
    try:
        for key, value, _, _ in _read_all_values(data, used if sound else len(data)):
            json.loads(key)
            if not math.isfinite(value):
                raise ValueError(f"{key} is {value}")
            entries[key] = value
    except _DAMAGE:
        return entries, False
    return entries, sound


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        lock = _try_lock(folder)
        # Another start may take the folder for one left behind before it is locked.
        if lock is not None and folder.exists():
            return folder, lock


def _remove_if_left_behind(folder: Path) -> None:
    lock = _try_lock(folder)
    if lock is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed or its process dies; None if it cannot be had."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
