"""The embedded form: gRPC, decode threads and engine in one process. Start, serve, drain, stop."""

import asyncio
import logging
import os
from collections.abc import Callable

import prometheus_client

from pipeline.embedded import Pipeline
from pipeline.garbage import spare_what_exists
from server.admin import admin_server
from server.build import build_pipeline
from server.decode_watch import watch_decodes
from server.front import Front
from server.metrics_page import MetricsPage
from server.settings import Settings
from server.startup import StartError, how_to_call, stop_on_signals

log = logging.getLogger(__name__)

_LOOK_S = 0.5


class EngineDied(Exception):
    """The engine ended by an error while serving."""


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        StartError: the port is taken, or warming up failed.
        ModelError: the model cannot be had.
        EngineDied: the device failed while serving.
    """
    stopping = stop_on_signals()
    front = Front(settings)
    port = front.listen(settings.port)
    print(f"listening on {settings.host}:{port}", flush=True)
    pipeline = build_pipeline(settings)
    front.answer_with(pipeline)
    log.info("large images are decoded in at most %d MiB at a time", settings.max_decoded_bytes >> 20)
    log.info("%d slots of %d bytes (%d pixels square)", settings.slots, pipeline.slots.slot_bytes, pipeline.canvas)
    _watch_engine(pipeline, front, stopping, settings)
    if settings.metrics_port:
        _serve_metrics(settings.metrics_port)
    admin = admin_server(pipeline, settings.admin_port)
    await admin.start()
    await front.server.start()
    try:
        is_warm = await _warm_up(pipeline, stopping)
    except StartError:
        await asyncio.gather(front.server.stop(0), admin.stop(0))
        raise
    if is_warm:
        spare_what_exists()
        front.set_serving(True)
        print(how_to_call(pipeline.info.name, pipeline.info.execution, settings, port), flush=True)
        watches = [
            asyncio.create_task(watch_decodes(pipeline.decoders.overruns, _say_restart)),
            asyncio.create_task(_end_if_hung(pipeline, settings)),
        ]
        try:
            await stopping
        finally:
            await admin.stop(0)
            await stop(front, pipeline)
            for watch in watches:
                watch.cancel()
        if pipeline.decoders.overruns.lost:
            # The interpreter would wait for their threads.
            os._exit(0)
    else:
        await front.server.stop(0)
        # A compiler that runs in the engine's thread cannot be interrupted.
        os._exit(0)


async def stop(front: Front, pipeline: Pipeline) -> None:
    """Finish the calls that were taken, then end all threads."""
    await front.drain()
    await asyncio.to_thread(pipeline.stop)
    log.info("stopped")


async def _end_if_hung(pipeline: Pipeline, settings: Settings) -> None:
    """End the process if its device hangs, which no thread can be brought back from; its callers are told at once."""
    while True:
        await asyncio.sleep(_LOOK_S)
        silent_s = pipeline.silent_s()
        if silent_s > settings.engine_timeout_s:
            log.critical("the device has hung for %.1f s (--engine-timeout-s): this process ends", silent_s)
            os._exit(1)


def _say_restart() -> None:
    log.error("only a restart gives them back; with --frontends the process would be replaced")


def _watch_engine(pipeline: Pipeline, front: Front, stopping: asyncio.Future[None], settings: Settings) -> None:
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
        pipeline.engine.on_recompile = tell_loop(lambda: front.set_serving(False))


def _serve_metrics(port: int) -> None:
    try:
        MetricsPage(port, prometheus_client.REGISTRY, lambda: {"server": os.getpid()})
    except OSError as error:
        raise StartError(str(error)) from None


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
