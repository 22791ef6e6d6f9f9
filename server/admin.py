"""What only whoever runs the server may ask for, on the loopback address alone."""

from typing import Any

import grpc

from pipeline.backend import Profiler
from pipeline.errors import InvalidRequest
from server.startup import StartError
from server.status import StatusInterceptor
from warmlane.v1 import admin_pb2 as pb
from warmlane.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server

_ADDRESS = "127.0.0.1"
# An eager model makes a few hundred kilobytes of trace a batch, a tenth of it once compressed; a message has its limit.
MAX_BATCHES = 1000
MAX_TIMEOUT_S = 300.0
_DEFAULT_TIMEOUT_S = 30.0


class Admin(AdminServicer):
    """The calls of admin.proto. Errors are raised, as in `server.servicer`."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler

    async def Profile(  # noqa: N802
        self, request: pb.ProfileRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ProfileResponse:
        """A trace of the engine under its callers' load."""
        if not 1 <= request.batches <= MAX_BATCHES:
            raise InvalidRequest(f"batches is {request.batches}; it must be 1 to {MAX_BATCHES}")
        timeout_s = request.timeout_s or _DEFAULT_TIMEOUT_S
        if not 0 < timeout_s <= MAX_TIMEOUT_S:
            raise InvalidRequest(f"timeout_s is {timeout_s:g}; it must be over 0 and at most {MAX_TIMEOUT_S:g}")
        return pb.ProfileResponse(trace=await self._profiler.profile(request.batches, timeout_s))


def admin_server(profiler: Profiler, port: int) -> grpc.aio.Server:
    """Answers admin calls on a port that other machines cannot reach; 0 is none, so that nobody can.

    Raises:
        StartError: the port is taken.
    """
    server = grpc.aio.server(interceptors=[StatusInterceptor()], options=[("grpc.so_reuseport", 0)])
    add_AdminServicer_to_server(Admin(profiler), server)
    if port:
        try:
            server.add_insecure_port(f"{_ADDRESS}:{port}")
        except RuntimeError:
            raise StartError(f"cannot listen on {_ADDRESS}:{port}: is it taken? (--admin-port)") from None
    return server
