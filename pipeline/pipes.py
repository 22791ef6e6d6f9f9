"""How frontends and engines reach each other: kernel sockets, one that leads to each engine and one to each frontend.

All frontends share the writing end of an engine's pipe, all engines that of a frontend's. The supervisor makes them, as
it makes the blocks: they have no names, and who takes a dead one's place finds its end again, with messages in it that
were for its predecessor. Incarnations and the generations of the slots tell those apart. A message queue with a thread
of its own costs either side five times as much a message, and takes twice as long (bench/LOG.md, 2026-11-30 and
2026-12-01).
"""

import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from pipeline.wire import REPLY_BYTES

# The longest message: the kernel takes none that is longer than the pipe has room, 208 KiB by default.
_MOST_BYTES = 1000 * REPLY_BYTES
# Asked for; the kernel gives as much as net.core.wmem_max allows. A descriptor takes 768 bytes of it.
_ROOM_BYTES = 1 << 20
# Somebody else may take the room that a pipe has told of, and then tells nothing more.
_RETRY_MS = 100


class Pipe(NamedTuple):
    """Both ends. Messages stay whole; neither end ever waits."""

    reader: socket.socket
    writer: socket.socket

    def close(self) -> None:
        """Close both."""
        self.reader.close()
        self.writer.close()


def make_pipe() -> Pipe:
    """A new one."""
    pipe = Pipe(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    for end in pipe:
        end.setblocking(False)
    pipe.writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    return pipe


def messages(reader: socket.socket) -> Iterator[bytes]:
    """All that has come, without waiting."""
    while True:
        try:
            yield reader.recv(_MOST_BYTES)
        except BlockingIOError:
            return


class DescriptorPipe:
    """A frontend's way to one engine. For any thread.

    Args:
        writer: see `Pipe`.
    """

    def __init__(self, writer: socket.socket) -> None:
        self._writer = writer
        self._unsent: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def send(self, descriptor: bytes) -> None:
        """Send. What finds no room, as the engine is slow to read, goes once there is some."""
        if not self._unsent:
            with suppress(BlockingIOError):
                self._writer.send(descriptor)
                return
        with self._changed:
            self._unsent.append(descriptor)
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._send_rest, name="descriptors", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self) -> None:
        """Send nothing more of what was for an engine that has died."""
        with self._changed:
            self._unsent.clear()

    def close(self) -> None:
        """End the thread, if there ever was need for one."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _send_rest(self) -> None:
        room = select.poll()
        room.register(self._writer, select.POLLOUT)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsent or self._is_closed)
                if self._is_closed:
                    return
            room.poll(_RETRY_MS)
            with self._changed, suppress(BlockingIOError):
                while self._unsent:
                    self._writer.send(self._unsent[0])
                    self._unsent.popleft()


class ReplyPipes:
    """An engine's ways to the frontends.

    Args:
        writers: one a frontend; see `Pipe`.
    """

    def __init__(self, writers: Sequence[socket.socket]) -> None:
        self._writers = writers
        self._unsent: dict[int, bytes] = {}

    def send(self, frontend: int, replies: bytes) -> None:
        """Send packed replies. What finds no room, as the frontend is slow to read, goes with the next ones."""
        rest = self._unsent.pop(frontend, b"") + replies
        try:
            while rest:
                self._writers[frontend].send(rest[:_MOST_BYTES])
                rest = rest[_MOST_BYTES:]
        except BlockingIOError:
            self._unsent[frontend] = rest

    def send_rest(self) -> None:
        """Try again what found no room."""
        for frontend in tuple(self._unsent):
            self.send(frontend, b"")

    def forget(self, frontend: int) -> None:
        """Send nothing more of what was for a frontend that has died."""
        self._unsent.pop(frontend, None)
