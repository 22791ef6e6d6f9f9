"""The processes of a supervisor: started, addressed, ended."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import zmq

from pipeline.wire import caller, engine_address
from server.plan import Order, Place, Plan, pack

# The module that runs as a child; see `server.child`.
child_module = "server.child"


@dataclass(eq=False)
class Child:
    """A process that was started, whether it lives or not.

    Attributes:
        exited: resolves with the exit status once the process has been reaped; negative for a signal.
        is_ready: it has said that it works: an engine is warm, a frontend listens.
        is_serving: of a frontend: it knows an engine that answers.
        is_given_up: it has been killed, and may take a while to end.
    """

    plan: Plan
    process: asyncio.subprocess.Process
    exited: "asyncio.Task[int]"
    is_ready: bool = False
    is_serving: bool = False
    is_given_up: bool = False
    started_s: float = field(default_factory=time.monotonic)
    _orders: "zmq.Socket[bytes] | None" = None

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started_s

    @property
    def place(self) -> Place:
        """What it is for."""
        return self.plan.place

    def order(self, order: Order) -> None:
        """Tell an engine."""
        if self._orders is None:
            self._orders = caller(zmq.PUSH, engine_address(self.plan.base, self.plan.engine))
        self._orders.send(pack(order))

    def terminate(self) -> None:
        """Ask a frontend to drain."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # It may have been reaped a moment ago.
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        """Let go of what led to a process that has been reaped."""
        if self._orders is not None:
            self._orders.close()


async def start(plan: Plan) -> Child:
    """Start the process of a plan.

    It ends with the thread that calls this (PR_SET_PDEATHSIG, prctl(2)).
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        child_module,
        plan.place.role,
        str(plan.place.index),
        stdin=asyncio.subprocess.PIPE,
        pass_fds=(*plan.blocks, *plan.descriptors, *plan.replies, plan.page),
    )
    child = Child(plan, process, asyncio.create_task(process.wait()))
    assert process.stdin is not None
    process.stdin.write(pack(plan))
    process.stdin.close()
    return child


async def end(children: Sequence[Child], timeout_s: float) -> None:
    """Wait until they have ended by themselves, then kill those that have not."""
    if not children:
        return
    await asyncio.wait([child.exited for child in children], timeout=timeout_s)
    for child in children:
        child.kill()
    await asyncio.wait([child.exited for child in children])
