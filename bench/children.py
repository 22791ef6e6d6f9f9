"""The frontends and engines of a server, found by what their command lines say."""

import contextlib
from dataclasses import dataclass

import psutil

_CHILD_MODULE = "server.child"


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the service: its role and number, as its command line says."""

    process: psutil.Process
    role: str
    number: int


def children(supervisor: int) -> list[Child]:
    """The service's frontends and engines that live; none in the embedded form."""
    found = []
    for process in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += _as_child(process)
    return found


def _as_child(process: psutil.Process) -> list[Child]:
    words = process.cmdline()
    if _CHILD_MODULE not in words[:-2] or process.status() == psutil.STATUS_ZOMBIE:
        return []
    role, number = words[words.index(_CHILD_MODULE) + 1 :][:2]
    return [Child(process, role, int(number))]
