"""A child's end of what is said between it and the supervisor."""

import threading
from typing import Any

import zmq

from pipeline.wire import caller, news_address, reports_address
from server.plan import Event, Plan, Report, pack

# A last report is worth waiting for: the process ends right after it.
_LAST_REPORT_MS = 1000


class Reporter:
    """Tells the supervisor, from any thread."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._socket = caller(zmq.PUSH, reports_address(plan.base))
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        """Send a report."""
        with self._lock:
            self._socket.send(pack(Report(self._plan.place, self._plan.incarnation, event)))

    def close(self) -> None:
        """Wait until what was told is on its way."""
        with self._lock:
            # All sockets of the process, or this would wait for somebody to close the others.
            zmq.Context.instance().destroy(linger=_LAST_REPORT_MS)


def news_socket(plan: Plan) -> "zmq.Socket[Any]":
    """Where a frontend reads `plan.News`."""
    socket = caller(zmq.SUB, news_address(plan.base))
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    return socket
