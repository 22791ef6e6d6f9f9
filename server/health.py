"""`grpc.health.v1`, Check and Watch. grpcio-health-checking's own servicer loses all watchers when one leaves."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Context = grpc.aio.ServicerContext


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The state of each health name. Lives on the event loop's thread."""

    def __init__(self) -> None:
        self._states: dict[str, Any] = {}
        self._changed = asyncio.Event()

    def set(self, name: str, state: int) -> None:
        """Set a state and tell the watchers."""
        self._states[name] = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: "Context[Any, Any]"
    ) -> health_pb2.HealthCheckResponse:
        """The state of a name; NOT_FOUND for one that is not known."""
        if request.service not in self._states:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such health name")
        return health_pb2.HealthCheckResponse(status=self._states[request.service])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: "Context[Any, Any]") -> None:  # noqa: N802
        """The state of a name, and again whenever it has changed."""
        written = None
        while True:
            changed = self._changed
            state = self._states.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if state != written:
                await context.write(health_pb2.HealthCheckResponse(status=state))
                written = state
            await changed.wait()
