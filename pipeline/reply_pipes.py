"""How replies get from an engine to the frontends: one kernel socket for each frontend, which all engines share.

The supervisor makes the pairs, as it makes the blocks: they have no names, and a frontend that is replaced finds its
end again, with replies in it that were for its predecessor; the generations of the slots tell them apart. A message
queue with a thread of its own would cost the engine five times as much a reply (bench/LOG.md, 2026-11-30).
"""

import socket
from collections.abc import Iterator, Sequence

from pipeline.wire import REPLY_BYTES

_MOST_BYTES = 1 << 20
# The kernel takes no message longer than the pipe has room, 208 KiB by default.
_AT_A_TIME = 1000 * REPLY_BYTES


def reply_pipe() -> tuple[socket.socket, socket.socket]:
    """The frontend's end, and the engines'. Messages stay whole; neither end ever waits."""
    frontend, engines = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    frontend.setblocking(False)
    engines.setblocking(False)
    return frontend, engines


def received_replies(frontend: socket.socket) -> Iterator[bytes]:
    """All that has come, without waiting."""
    while True:
        try:
            yield frontend.recv(_MOST_BYTES)
        except BlockingIOError:
            return


class ReplyPipes:
    """An engine's ends.

    Args:
        pipes: one a frontend.
    """

    def __init__(self, pipes: Sequence[socket.socket]) -> None:
        self._pipes = pipes
        self._unsent: dict[int, bytes] = {}

    def send(self, frontend: int, replies: bytes) -> None:
        """Send packed replies. What finds no room, as the frontend is slow to read, goes with the next ones."""
        rest = self._unsent.pop(frontend, b"") + replies
        try:
            while rest:
                self._pipes[frontend].send(rest[:_AT_A_TIME])
                rest = rest[_AT_A_TIME:]
        except BlockingIOError:
            self._unsent[frontend] = rest

    def send_rest(self) -> None:
        """Try again what found no room."""
        for frontend in tuple(self._unsent):
            self.send(frontend, b"")

    def forget(self, frontend: int) -> None:
        """Send nothing more of what was for a frontend that has died."""
        self._unsent.pop(frontend, None)
