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

    @property
    def name(self) -> str:
        """Such as "frontend-0"."""
        return f"{self.role}-{self.number}"


def children(supervisor: int) -> list[Child]:
    """The service's frontends and engines that live; none in the embedded form."""
    found = []
    for process in psutil.Process(supervisor).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if (child := as_child(process)) is not None:
                found.append(child)
    return found


def as_child(process: psutil.Process) -> Child | None:
    """What a process is for; None if it is none of a supervisor's, or is dead.

    Raises:
        psutil.NoSuchProcess: it has been reaped.
    """
    words = process.cmdline()
    if _CHILD_MODULE not in words[:-2] or process.status() == psutil.STATUS_ZOMBIE:
        return None
    role, number = words[words.index(_CHILD_MODULE) + 1 :][:2]
    return Child(process, role, int(number))
