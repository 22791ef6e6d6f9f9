"""The service's processes from outside: memory, open files, and whether any outlives it."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.chaos.outcomes import Check

# Pages of libraries come and go with the cache: what counts is a process's own, and its share of shared memory.
_OWN = re.compile(r"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB$", re.MULTILINE)
_SHARED = re.compile(r"^Pss_Shmem:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the service holds at one time.

    Attributes:
        mib: memory of all its processes, resident and swapped, shared memory counted once.
        shared_mib: the shared memory in it.
        supervisor_mib: what the first process holds.
        supervisor_files: open files of the first process.
        processes: how many there are.
    """

    mib: float
    shared_mib: float
    supervisor_mib: float
    supervisor_files: int
    processes: int


class Tree:
    """The processes under one, and all that ever were."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._seen: set[psutil.Process] = {self._root}

    def look(self) -> Footprint:
        """Measure what lives now."""
        living = [self._root, *self._root.children(recursive=True)]
        self._seen.update(living)
        texts = [_smaps(process.pid) for process in living]
        return Footprint(
            mib=sum(_mib(_OWN, text) for text in texts),
            shared_mib=sum(_mib(_SHARED, text) for text in texts),
            supervisor_mib=_mib(_OWN, texts[0]),
            supervisor_files=self._root.num_fds(),
            processes=len(living),
        )

    def left_over(self) -> list[str]:
        """What still lives of all that was ever seen."""
        left = []
        for process in self._seen:
            # is_running compares start times too: a number that was given again is another process.
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{process.pid} {' '.join(process.cmdline()[-3:])}")
        return left


def shared_files() -> set[str]:
    """The shared memory of this machine that has a name; other programs' semaphores come and go there."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


def check_memory(before: Footprint, after: Footprint, growth: float, allowance_mib: float) -> list[Check]:
    """Memory and files at the end against the beginning, both after the same load for the same time.

    Args:
        growth: by how much it may grow, as a share.
        allowance_mib: and on top of that, in MiB.
    """

    def flat(name: str, early: float, late: float) -> Check:
        is_flat = late <= early * (1 + growth) + allowance_mib
        return Check(f"{name} is flat", is_flat, f"{early:.0f}, then {late:.0f} MiB")

    files = f"{before.supervisor_files}, then {after.supervisor_files}"
    processes = f"{before.processes}, then {after.processes}"
    return [
        flat("memory of all processes", before.mib, after.mib),
        flat("memory of the first process", before.supervisor_mib, after.supervisor_mib),
        flat("shared memory", before.shared_mib, after.shared_mib),
        Check("open files of the first process are flat", after.supervisor_files <= before.supervisor_files + 4, files),
        Check("as many processes as at the start", after.processes == before.processes, processes),
    ]


def _smaps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (OSError, ValueError):
        return ""  # it has ended meanwhile


def _mib(pattern: re.Pattern[str], text: str) -> float:
    return sum(map(int, pattern.findall(text))) / 1024
