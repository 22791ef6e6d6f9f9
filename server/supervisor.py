"""The form with several processes: frontends that take calls, an engine for each device, and this, which keeps them up.

    plan -> start children -> reports come in, news go out -> whoever dies is replaced -> SIGTERM: drain, stop

What has to hold at a death: the slots of a dead frontend are used again only after every engine has confirmed that it
will not touch them, and those that a dead engine held only after its process has been reaped.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING

import zmq

from pipeline.info import ModelInfo
from pipeline.wire import Sender, listener, new_base, news_address, received, reports_address
from server.children import Child, end, start
from server.confirmations import Confirmations
from server.engine_states import EngineStates
from server.hang_watch import HangWatch
from server.metrics_files import MetricsFiles, prepare
from server.plan import (
    Described,
    Forget,
    Idle,
    Listening,
    Place,
    Plan,
    Profiled,
    Recompiled,
    Refused,
    Report,
    Serving,
    Stop,
    UseLayout,
    Warm,
    pack,
    unpack,
)
from server.port import balanced_target, hold_frontend_ports, hold_port
from server.remote_profiler import RemoteProfiler
from server.settings import Settings
from server.shared_memory import SharedMemory
from server.startup import StartError, how_to_call, stop_on_signals

if TYPE_CHECKING:
    import grpc

log = logging.getLogger(__name__)

_NEWS_S = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
# A child that has lived for so long does not fail by itself at once, and its successor is started without a pause.
_LONG_LIFE_S = 10.0
_STOP_S = 5.0
# What a process has said right before its end may arrive a little after the news of its end.
_LAST_WORDS_S = 0.2


async def supervise(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Raises:
        StartError: the port is taken, or a process could not start.
    """
    supervisor = Supervisor(settings)
    try:
        await supervisor.run()
    finally:
        await supervisor.close()


class Supervisor:
    """Lives on the event loop's thread, which must outlive the children."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stopping = stop_on_signals()
        self._held_port = hold_port(settings)
        self._port: int = self._held_port.getsockname()[1]
        self._own_ports = hold_frontend_ports(settings)
        self._base = new_base()
        self._memory = SharedMemory(settings.frontends, len(settings.devices), settings.slots)
        self._news = listener(zmq.PUB, news_address(self._base))
        self._reports = listener(zmq.PULL, reports_address(self._base))
        self._children: dict[Place, Child] = {}
        self._engines = EngineStates(self._memory, len(settings.devices), is_strict=settings.strict)
        self._is_ending = False
        self._said_listening = self._said_serving = False
        self._confirmations = Confirmations()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._profiler = RemoteProfiler(self._warm_engines)
        self._admin: grpc.aio.Server | None = None
        self._files = self._serve_metrics()

    async def run(self) -> None:
        """See `supervise`."""
        self._loop.add_reader(self._reports.FD, self._on_reports)
        if self._settings.admin_port:
            await self._serve_admin()
        places = [Place("frontend", index) for index in range(self._settings.frontends)]
        places += [Place("engine", index) for index in range(len(self._settings.devices))]
        self._tasks = [asyncio.create_task(self._keep(place)) for place in places]
        self._tasks.append(asyncio.create_task(self._watch()))
        await asyncio.wait({self._stopping, self._failed, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()
        if self._failed.done():
            self._failed.result()
        await self._drain()

    async def _serve_admin(self) -> None:
        # Only here: without it, a supervisor does without gRPC.
        from server.admin import admin_server

        self._admin = admin_server(self._profiler, self._settings.admin_port)
        await self._admin.start()

    async def close(self) -> None:
        """Leave nothing behind."""
        if self._admin is not None:
            await self._admin.stop(0)
        self._is_ending = True
        for child in self._children.values():
            child.kill()
        await end(list(self._children.values()), 0.0)
        for task in self._tasks:
            task.cancel()
        for held in (self._held_port, *self._own_ports):
            held.close()
        self._memory.close()
        if self._files is not None:
            self._files.close()

    def _serve_metrics(self) -> MetricsFiles | None:
        if not self._settings.metrics_port:
            return None
        files = prepare()
        try:
            files.serve(self._settings.metrics_port, self._processes)
        except OSError as error:
            files.close()
            raise StartError(str(error)) from None
        return files

    def _processes(self) -> Mapping[str, int]:
        children = {str(place): child.process.pid for place, child in list(self._children.items())}
        return {"supervisor": os.getpid(), **children}

    async def _keep(self, place: Place) -> None:
        """Have a process in a place, always."""
        incarnation, pause_s = 0, 0.0
        while not self._is_ending:
            child = self._children[place] = await start(self._plan(place, incarnation))
            status, lived_s = await asyncio.shield(child.exited), child.age_s
            if not child.is_ready:
                await asyncio.sleep(_LAST_WORDS_S)
            self._bury(child)
            if self._is_ending:
                return
            if not incarnation and not child.is_ready:
                self._fail(f"{place} {_ending(status)} before it was ready")
                return
            log.error("%s %s; another takes its place", place, _ending(status))
            if place.role == "frontend":
                await self._slots_are_idle(child.plan.sender)
            pause_s = 0.0 if lived_s > _LONG_LIFE_S else min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
            incarnation += 1
            if self._files is not None:
                self._files.count_restart(str(place))

    def _plan(self, place: Place, incarnation: int) -> Plan:
        is_engine, memory = place.role == "engine", self._memory
        own = slice(place.index, place.index + 1)
        read = [pipe.reader.fileno() for pipe in (memory.descriptors if is_engine else memory.replies)[own]]
        written = [pipe.writer.fileno() for pipe in (memory.replies if is_engine else memory.descriptors)]
        return Plan(
            place=place,
            incarnation=incarnation,
            parent=os.getpid(),
            settings=self._settings,
            base=self._base,
            port=self._port,
            own_port=self._own_ports[place.index].getsockname()[1] if self._own_ports and not is_engine else 0,
            device=self._settings.devices[place.index] if is_engine else "",
            engines=len(self._settings.devices),
            blocks=memory.blocks[slice(None) if is_engine else own],
            descriptors=tuple(read if is_engine else written),
            replies=tuple(written if is_engine else read),
            page=memory.page_fd,
        )

    def _bury(self, child: Child) -> None:
        """Let everybody know that a process has been reaped."""
        self._children.pop(child.place, None)
        child.close()
        if self._files is not None:
            self._files.forget(str(child.place))
        if child.place.role == "frontend":
            self._memory.page.in_flight[child.place.index] = 0.0
        else:
            self._engines.forget(child.plan.engine)
            self._tell()
            self._confirmations.bury(child.plan.engine)

    async def _slots_are_idle(self, sender: Sender) -> None:
        """Wait until no engine will touch a dead frontend's slots. Only warm ones have ever heard of it."""
        engines = self._warm_engines()
        for child in engines:
            child.order(Forget(sender))
        await self._confirmations.wait(sender, [child.plan.engine for child in engines])

    def _warm_engines(self) -> list[Child]:
        engines = [child for child in self._children.values() if child.place.role == "engine"]
        return [child for child in engines if child.plan.engine in self._engines]

    async def _watch(self) -> None:
        """Repeat the news, for whoever has just begun to listen, and look for processes that hang."""
        settings = self._settings
        limits_s = {"engine": settings.engine_timeout_s, "frontend": settings.frontend_timeout_s}
        hangs = HangWatch(self._memory.page, limits_s)
        while True:
            await asyncio.sleep(_NEWS_S)
            self._tell()
            hangs.look(self._children.values())

    def _tell(self) -> None:
        self._news.send(pack(self._engines.news()))

    def _on_reports(self) -> None:
        for message in received(self._reports):
            report: Report = unpack(message)
            child = self._children.get(report.place)
            if child is not None and child.plan.incarnation == report.incarnation:
                self._on_report(child, report)

    def _on_report(self, child: Child, report: Report) -> None:
        event = report.event
        if isinstance(event, Listening):
            child.is_ready = True
            if child.plan.incarnation:
                log.info("%s listens", child.place)
            self._announce()
        elif isinstance(event, Serving):
            child.is_serving = True
            self._announce()
        elif isinstance(event, Described):
            self._describe(child, event.info)
        elif isinstance(event, Warm):
            self._on_warm(child, event)
        elif isinstance(event, Idle):
            self._confirmations.confirm(event.sender, child.plan.engine)
        elif isinstance(event, Recompiled):
            self._engines.recompiled(child.plan.engine)
            self._tell()
        elif isinstance(event, Profiled):
            self._profiler.take(event)
        else:
            self._on_refused(child, event)

    def _describe(self, child: Child, info: ModelInfo) -> None:
        try:
            layout = self._engines.describe(info)
        except StartError as error:
            self._fail(f"{child.plan.device}: {error}" if self._engines.info else str(error))
            return
        child.order(UseLayout(layout))

    def _on_warm(self, child: Child, event: Warm) -> None:
        child.is_ready = True
        self._engines.warm(child.plan.engine, event)
        log.info("%s is warm on %s: %s", child.place, child.plan.device, event.execution)
        self._tell()

    def _on_refused(self, child: Child, event: Refused) -> None:
        if child.plan.incarnation:
            log.error("%s cannot start: %s", child.place, event.reason)
        else:
            self._fail(event.reason)

    def _announce(self) -> None:
        """Say once each, in this order, that all frontends listen, and that all of them answer."""
        frontends = self._frontends()
        if len(frontends) < self._settings.frontends:
            return
        if not self._said_listening and all(child.is_ready for child in frontends):
            self._said_listening = True
            if self._own_ports:
                print(f"each frontend alone: {balanced_target(self._own_ports)}", flush=True)
            print(f"listening on {self._settings.host}:{self._port}", flush=True)
        if self._said_listening and not self._said_serving and all(child.is_serving for child in frontends):
            info = self._engines.info
            assert info is not None
            self._said_serving = True
            print(how_to_call(info.name, info.execution, self._settings, self._port), flush=True)

    def _frontends(self) -> list[Child]:
        return [child for child in self._children.values() if child.place.role == "frontend"]

    def _fail(self, reason: str) -> None:
        if not self._failed.done() and not self._is_ending:
            self._failed.set_exception(StartError(reason))

    async def _drain(self) -> None:
        """Frontends finish their calls while the engines still answer; then the engines end."""
        self._is_ending = True
        frontends = self._frontends()
        for child in frontends:
            # One that does not listen yet has no calls, and would not hear either.
            child.terminate() if child.is_ready else child.kill()
        await end(frontends, self._settings.drain_s + _STOP_S)
        engines = self._warm_engines()
        for child in engines:
            child.order(Stop())
        # One that is still compiling cannot listen.
        await end(engines, _STOP_S)
        log.info("stopped")


def _ending(status: int) -> str:
    """What became of a process, in words."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"has ended with status {status}"
