"""The port that all frontends share, and those that each has alone."""

import socket
from collections.abc import Sequence

from server.settings import Settings
from server.startup import StartError

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def hold_port(settings: Settings) -> socket.socket:
    """A socket that fixes the port which all frontends share, without listening itself.

    Raises:
        StartError: somebody else has it.
    """
    return _hold(settings.host, settings.port, "--host, --port")


def hold_frontend_ports(settings: Settings) -> list[socket.socket]:
    """The same for the port that each frontend has alone; none without `--frontend-port`.

    Raises:
        StartError: somebody else has one of them.
    """
    first = settings.frontend_port
    if first is None:
        return []
    held: list[socket.socket] = []
    try:
        for index in range(settings.frontends):
            port = first + index if first else 0
            held.append(_hold(settings.host, port, "--host, --frontend-port"))
    except StartError:
        for each in held:
            each.close()
        raise
    return held


def balanced_target(held: Sequence[socket.socket]) -> str:
    """All of these ports as one gRPC target, for callers on this machine: "ipv4:127.0.0.1:50052,127.0.0.1:50053"."""
    addresses = []
    for each in held:
        host, port = each.getsockname()[:2]
        host = _ANY_ADDRESS.get(host, host)
        addresses.append(f"[{host}]:{port}" if each.family == socket.AF_INET6 else f"{host}:{port}")
    scheme = "ipv6" if held[0].family == socket.AF_INET6 else "ipv4"
    return f"{scheme}:{','.join(addresses)}"


def _hold(host: str, port: int, flags: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as alone:
            # Without SO_REUSEPORT first: a second server must fail, not silently take half of the calls.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            address = alone.getsockname()
        held = socket.socket(family, kind, protocol)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
        # From here on the test above fails for others, also while no frontend listens yet.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        raise StartError(f"cannot listen on {host}:{port}: is it taken? ({flags})") from None
    return held
