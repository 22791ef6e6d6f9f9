"""The embedded form: gRPC, decode threads and engine in one process. Start, serve, drain, stop."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import grpc
import prometheus_client
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pipeline.cpus import available_cpus
from pipeline.embedded import Pipeline
from pipeline.headers import Limits
from pipeline.lanes import device_name, resolve_device, resolve_dtype
from pipeline.model import Model, load_model
from pipeline.options import Options
from server.admission import Admission
from server.health import HealthServicer
from server.metrics_page import MetricsPage
from server.servicer import Servicer
from server.settings import Settings
from server.status import StatusInterceptor
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import add_ClassifierServicer_to_server

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["Classifier"].full_name
LIVENESS = "liveness"
_MAX_MESSAGE_BYTES = 64 << 20
_GOODBYE_S = 0.5
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class EngineDied(Exception):
    """The engine ended by an error while serving."""


class StartError(Exception):
    """The server cannot start; one line says why."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        StartError: the port is taken, or warming up failed.
        ModelError: the model cannot be had.
        EngineDied: the device failed while serving.
    """
    stopping = _stop_on_signals()
    server = _grpc_server()
    port = _bind(server, settings)
    print(f"listening on {settings.host}:{port}", flush=True)
    pipeline = build_pipeline(settings)
    admission = Admission(pipeline, asyncio.get_running_loop())
    add_ClassifierServicer_to_server(Servicer(pipeline, admission, settings), server)
    checks = _add_health(server)
    log.info("%d slots of %d bytes (%d pixels square)", settings.slots, pipeline.slots.slot_bytes, pipeline.canvas)
    _watch_engine(pipeline, checks, stopping, settings)
    if settings.metrics_port:
        _serve_metrics(settings.metrics_port)
    await server.start()
    try:
        is_warm = await _warm_up(pipeline, stopping)
    except StartError:
        await server.stop(0)
        raise
    if is_warm:
        _set_health(checks, _SERVING)
        print(_how_to_call(pipeline, settings, port), flush=True)
        try:
            await stopping
        finally:
            await _drain(server, pipeline, admission, checks, settings.drain_s)
    else:
        await server.stop(0)
        # A compiler that runs in the engine's thread cannot be interrupted.
        os._exit(0)


def _stop_on_signals() -> asyncio.Future[None]:
    """Resolves at the first SIGTERM or SIGINT; the second one ends the process at once."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if stopping.done():
            os._exit(128 + number)
        stopping.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stopping


def _watch_engine(
    pipeline: Pipeline, checks: HealthServicer, stopping: asyncio.Future[None], settings: Settings
) -> None:
    """Fail `stopping` if the engine dies, and with --strict take the service out of readiness if it recompiles."""
    loop = asyncio.get_running_loop()

    def on_death() -> None:
        # A process whose device is lost can only be replaced.
        if not stopping.done():
            stopping.set_exception(EngineDied("the engine has died; the log says why"))

    def tell_loop(callback: Callable[[], None]) -> Callable[[], None]:
        def tell() -> None:
            loop.call_soon_threadsafe(callback)

        return tell

    pipeline.engine.on_death = tell_loop(on_death)
    if settings.strict:
        pipeline.engine.on_recompile = tell_loop(lambda: _set_health(checks, _NOT_SERVING))


def _grpc_server() -> grpc.aio.Server:
    return grpc.aio.server(
        interceptors=[StatusInterceptor()],
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            # One process owns the port: a second server must fail, not silently take half of the calls.
            ("grpc.so_reuseport", 0),
        ],
    )


def _bind(server: grpc.aio.Server, settings: Settings) -> int:
    try:
        return int(server.add_insecure_port(f"{settings.host}:{settings.port}"))
    except RuntimeError:
        raise StartError(f"cannot listen on {settings.host}:{settings.port}: is it taken? (--host, --port)") from None


def _serve_metrics(port: int) -> None:
    try:
        MetricsPage(port, prometheus_client.REGISTRY, lambda: {"server": os.getpid()})
    except OSError as error:
        raise StartError(str(error)) from None


def build_pipeline(settings: Settings) -> Pipeline:
    """What stands behind the servicer, not started yet.

    Raises:
        ModelError: the model or the device cannot be had.
    """
    return Pipeline(served_model(settings), pipeline_options(settings), _limits(settings))


def served_model(settings: Settings) -> Model:
    """The model that the settings name.

    Raises:
        ModelError: it cannot be had.
    """
    return load_model(
        settings.model,
        weights=settings.weights,
        labels=settings.labels,
        activation=settings.activation,  # type: ignore[arg-type]
        overrides=settings.preprocess_overrides(),
    )


def pipeline_options(settings: Settings) -> Options:
    """How the settings run their model, with every "auto" resolved.

    Raises:
        ModelError: the device cannot be had.
    """
    cpus = available_cpus()
    device = resolve_device(settings.device)
    options = Options(
        device=device,
        dtype=resolve_dtype(settings.dtype, device),
        lanes=settings.lanes,
        batch_size=settings.batch_size,
        canvas=settings.canvas,
        slots=settings.slots,
        threads=settings.threads or cpus,
        decode_threads=settings.decode_threads or cpus,
        max_wait_ms=settings.max_wait_ms,
        compile=settings.compile,
        compile_cache=settings.compile_cache.expanduser(),
    )
    log.info("%d CPUs: %d forward threads, %d decode threads", cpus, options.threads, options.decode_threads)
    log.info("the model runs on %s in %s", device_name(device), options.dtype)
    return options


def _limits(settings: Settings) -> Limits:
    return Limits(settings.max_image_bytes, settings.max_image_pixels, settings.max_image_frames)


def _add_health(server: grpc.aio.Server) -> HealthServicer:
    checks = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    checks.set(LIVENESS, _SERVING)
    _set_health(checks, _NOT_SERVING)
    return checks


def _set_health(checks: HealthServicer, state: int) -> None:
    for service in ("", SERVICE):
        checks.set(service, state)


async def _warm_up(pipeline: Pipeline, stopping: asyncio.Future[None]) -> bool:
    """True once requests can be answered, False if a signal came first."""
    warm = asyncio.wrap_future(pipeline.start())
    await asyncio.wait({warm, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not warm.done():
        return False
    error = warm.exception()
    if error is not None:
        raise StartError(f"the model cannot run: {error}") from error
    return True


def _how_to_call(pipeline: Pipeline, settings: Settings, port: int) -> str:
    host = "localhost" if settings.host in ("0.0.0.0", "127.0.0.1", "[::]") else settings.host
    return f"serving {pipeline.model.name} ({pipeline.engine.execution}): warmlane classify --target {host}:{port} FILE"


async def _drain(
    server: grpc.aio.Server, pipeline: Pipeline, admission: Admission, checks: HealthServicer, drain_s: float
) -> None:
    log.info("draining: no new calls, %d images in flight", pipeline.slots.in_use)
    _set_health(checks, _NOT_SERVING)
    # gRPC listens on meanwhile: a call that comes now is told UNAVAILABLE under its request id, by admission.
    await admission.drain(drain_s)
    # Streams that never end, of health and reflection, are cut after this.
    await server.stop(_GOODBYE_S)
    await asyncio.to_thread(pipeline.stop)
    log.info("stopped")
