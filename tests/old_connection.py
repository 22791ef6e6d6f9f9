"""A relay in front of a server whose first connection ends just as a call comes in: HTTP/2 by hand, RFC 9113."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_ACK = 1


@contextmanager
def relay(target: str) -> Iterator[str]:
    """Its target. The first connection to it answers the first call with GOAWAY, naming no stream as seen (section 6.8
    of the RFC), as a server does that closes an old connection; those after it lead to `target`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, target))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _serve(listener: socket.socket, target: str) -> None:
    host, port = target.rsplit(":", 1)
    sockets, threads = [listener.accept()[0]], []
    threads.append(_started(_go_away, sockets[0]))
    # Until the listener is shut down.
    with suppress(OSError):
        while True:
            client, server = listener.accept()[0], socket.create_connection((host, int(port)))
            sockets += client, server
            threads += _started(_copy, client, server), _started(_copy, server, client)
    for either in sockets:
        with suppress(OSError):
            either.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for either in sockets:
        either.close()


def _started(work: Callable[..., None], *sockets: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=work, args=sockets)
    thread.start()
    return thread


def _go_away(client: socket.socket) -> None:
    client.sendall(_frame(_SETTINGS))
    with client.makefile("rb") as stream:
        assert stream.read(len(_PREFACE)) == _PREFACE
        while True:
            high, low, kind, flags, _ = struct.unpack(">BHBBI", stream.read(9))
            stream.read(high << 16 | low)
            if kind == _SETTINGS and not flags & _ACK:
                client.sendall(_frame(_SETTINGS, flags=_ACK))
            if kind == _HEADERS:
                client.sendall(_frame(_GOAWAY, struct.pack(">II", 0, 0) + b"max_age"))
                # Until the client has hung up: an end from here would be a broken connection.
                stream.read()
                return


def _frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">BHBBI", 0, len(payload), kind, flags, 0) + payload


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Until either ends; then the other side hears of it too."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
