"""The one port that all frontends share."""

import socket

from server.settings import Settings
from server.startup import StartError


def hold_port(settings: Settings) -> socket.socket:
    """A socket that fixes the port which all frontends share, without listening itself.

    Raises:
        StartError: somebody else has it.
    """
    host = settings.host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0]
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
        raise StartError(f"cannot listen on {settings.host}:{settings.port}: is it taken? (--host, --port)") from None
    return held
