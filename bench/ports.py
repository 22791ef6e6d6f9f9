"""Ports for servers that are started here. Imports nothing, as whoever serves may have other libraries."""

import socket


def free_port() -> int:
    """A TCP port that nobody listens on, for a setting that cannot take 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
