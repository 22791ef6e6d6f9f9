"""The gRPC side of a process: one port with the classifier, health and reflection. The same in both forms."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pipeline.backend import Backend
from server.admission import Admission
from server.health import HealthServicer
from server.servicer import Servicer
from server.settings import Settings
from server.startup import StartError
from server.status import StatusInterceptor
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import add_ClassifierServicer_to_server

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Classifier"].full_name
LIVENESS = "liveness"
_MAX_MESSAGE_BYTES = 64 << 20
_GOODBYE_S = 0.5
# Times --max-calls. Admission refuses in time and with a pushback; gRPC does so to all calls, health checks included,
# and is only to save a process whose event loop cannot keep up.
_HARD_LIMIT = 2
_SHARED_CONNECTION_AGE_S = 300.0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Front:
    """Made on the event loop's thread, and belongs to it.

    Args:
        shares_port: several processes listen on the port, and the kernel gives each its share of the connections.

    Attributes:
        server: not started yet, so that what else is served can be added.
        admission: there once `answer_with` has been called.
    """

    admission: Admission

    def __init__(self, settings: Settings, *, shares_port: bool = False) -> None:
        self.server = _grpc_server(settings, shares_port)
        self._settings = settings
        self._checks = HealthServicer()
        self._is_draining = False
        health_pb2_grpc.add_HealthServicer_to_server(self._checks, self.server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server)
        self._checks.set(LIVENESS, _SERVING)
        self.set_serving(False)

    def listen(self, port: int) -> int:
        """Bind the port; 0 takes a free one, which is returned.

        Raises:
            StartError: it is taken.
        """
        host = self._settings.host
        try:
            return int(self.server.add_insecure_port(f"{host}:{port}"))
        except RuntimeError:
            raise StartError(f"cannot listen on {host}:{port}: is it taken? (--host, --port)") from None

    def answer_with(self, backend: Backend) -> None:
        """Add the classifier; the backend may still be starting."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        self.admission = Admission(backend, loop, settings.max_undecoded_bytes, settings.max_calls)
        add_ClassifierServicer_to_server(Servicer(backend, self.admission, self._settings), self.server)

    def set_serving(self, is_serving: bool) -> None:
        """What health checks are told; once draining, always that nothing is served."""
        state = _SERVING if is_serving and not self._is_draining else _NOT_SERVING
        for service in ("", SERVICE):
            self._checks.set(service, state)

    async def drain(self) -> None:
        """Take no new calls, finish those that were taken, and stop listening."""
        log.info("draining: no new calls")
        self._is_draining = True
        self.set_serving(False)
        # gRPC listens on meanwhile: a call that comes now is told UNAVAILABLE under its request id, by admission.
        await self.admission.drain(self._settings.drain_s)
        # Streams that never end, of health and reflection, are cut after this.
        await self.server.stop(_GOODBYE_S)


def _grpc_server(settings: Settings, shares_port: bool) -> grpc.aio.Server:
    options: list[tuple[str, int]] = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", settings.max_calls),
        # Where one process owns the port, a second server must fail, not silently take half of the calls.
        ("grpc.so_reuseport", int(shares_port)),
    ]
    # Connections stay where they are: without an end to them, a frontend that was replaced would get none.
    age_s = settings.max_connection_age_s or (_SHARED_CONNECTION_AGE_S if shares_port else 0.0)
    if age_s:
        options.append(("grpc.max_connection_age_ms", round(1e3 * age_s)))
    return grpc.aio.server(
        interceptors=[StatusInterceptor()], options=options, maximum_concurrent_rpcs=_HARD_LIMIT * settings.max_calls
    )
