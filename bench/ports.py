"""Ports for servers that are started here. Imports nothing, as whoever serves may have other libraries."""

import contextlib
import socket


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def free_port() -> int:
    """A TCP port that nobody listens on, for a setting that cannot take 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
