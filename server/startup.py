"""What both forms of the server do around serving; light, so that it can be had before anything else."""

import asyncio
import os
import signal

from server.settings import Settings


class StartError(Exception):
    """The server cannot start; one line says why."""


def stop_on_signals(*, once: bool = False) -> asyncio.Future[None]:
    """Resolves at the first SIGTERM or SIGINT; the second one ends the process at once.

    Args:
        once: take no notice of a second one, nor of SIGINT: the supervisor, which gets them too, knows when to end.
    """
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if not stopping.done():
            stopping.set_result(None)
        elif not once:
            os._exit(128 + number)

    loop.add_signal_handler(signal.SIGTERM, on_signal, signal.SIGTERM)
    if once:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGINT, on_signal, signal.SIGINT)
    return stopping


def _address(settings: Settings, port: int) -> str:
    """HOST:PORT for people on this machine."""
    host = "localhost" if settings.host in ("0.0.0.0", "127.0.0.1", "[::]") else settings.host
    return f"{host}:{port}"


def how_to_call(name: str, execution: str, settings: Settings, port: int) -> str:
    """The line that says that a server is ready."""
    return f"serving {name} ({execution}): warmlane classify --target {_address(settings, port)} FILE"
