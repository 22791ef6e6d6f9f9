"""An engine as a process of its own: images come by descriptor from the frontends' shared slots."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

import zmq

from pipeline.arrivals import ArrivalQueue
from pipeline.block import SharedBlock
from pipeline.engine import Engine
from pipeline.engine import Warm as WarmLanes
from pipeline.errors import Overloaded
from pipeline.garbage import spare_what_exists
from pipeline.lanes import build_lanes, describe
from pipeline.model import Model, ModelError
from pipeline.options import Options
from pipeline.profiling import record
from pipeline.shared import Layout, StatusPage
from pipeline.wire import Sender, engine_address, listener
from server.build import model_and_options
from server.link import Reporter
from server.plan import (
    Described,
    EndProfile,
    Forget,
    Idle,
    Plan,
    Profiled,
    Recompiled,
    RecordProfile,
    Refused,
    Stop,
    UseLayout,
    Warm,
    unpack,
)

log = logging.getLogger(__name__)

_BEAT_S = 0.5


def run(plan: Plan) -> int:
    """Serve until the supervisor says otherwise; the exit status of the process."""
    reporter = Reporter(plan)
    try:
        _EngineProcess(plan, reporter).run()
    except ModelError as error:
        return _refuse(reporter, str(error))
    except Exception as error:
        log.debug("the engine cannot start", exc_info=error)
        return _refuse(reporter, f"the model cannot run: {error}")
    return 0


def _refuse(reporter: Reporter, reason: str) -> int:
    reporter.tell(Refused(reason))
    reporter.close()
    return 2


class _EngineProcess:
    def __init__(self, plan: Plan, reporter: Reporter) -> None:
        self._plan = plan
        self._reporter = reporter
        self._orders = listener(zmq.PULL, engine_address(plan.base, plan.engine))
        self._page = StatusPage(plan.page, plan.settings.frontends, plan.engines)
        self._stopping = threading.Event()
        self._is_warm = threading.Event()
        self._recording: dict[int, threading.Event] = {}

    def run(self) -> None:
        """Load, warm up, serve, stop."""
        settings = self._plan.settings
        threading.Thread(target=self._beat_until_warm, name="pulse", daemon=True).start()
        model, options = model_and_options(settings, self._plan.device)
        self._reporter.tell(Described(describe(model, options)))
        layout = self._wait_for_layout()
        if layout is None:
            return
        blocks = [SharedBlock(fd, layout) for fd in self._plan.blocks]
        self._queue = ArrivalQueue(
            self._plan.engine,
            socket.socket(fileno=self._plan.descriptors[0]),
            self._orders,
            blocks,
            self._page,
            [socket.socket(fileno=fd) for fd in self._plan.replies],
            batch_size=options.batch_size,
            max_wait_ms=options.max_wait_ms,
            on_order=self._obey,
            on_idle=self._confirm_idle,
        )
        engine = Engine(lambda: _warm_up(model, options, blocks), self._queue)
        # A process whose device is lost can only be replaced, and the sooner the better.
        engine.on_death = lambda: os._exit(1)
        engine.on_recompile = lambda: self._reporter.tell(Recompiled())
        engine.start()
        engine.ready.result()
        spare_what_exists()
        self._is_warm.set()
        self._queue.beat(time.monotonic_ns())
        if engine.gpu_decode is not None:
            self._queue.decode_with(engine.gpu_decode)
        self._reporter.tell(Warm(engine.execution, engine.cost, engine.gpu_decode.name if engine.gpu_decode else ""))
        self._stopping.wait()
        engine.stop()

    def _beat_until_warm(self) -> None:
        """Show that the process is not frozen: a compilation may take minutes, and its thread shows nothing."""
        while not self._is_warm.wait(_BEAT_S):
            self._page.heartbeat[self._plan.place.index] = time.monotonic()

    def _wait_for_layout(self) -> Layout | None:
        while True:
            order = unpack(self._orders.recv())
            if isinstance(order, UseLayout):
                return order.layout
            if isinstance(order, Stop):
                return None

    def _obey(self, message: bytes) -> None:
        order = unpack(message)
        if isinstance(order, Forget):
            self._queue.forget(order.sender)
        elif isinstance(order, Stop):
            self._stopping.set()
        elif isinstance(order, RecordProfile):
            threading.Thread(target=self._record, args=(order,), name="profile", daemon=True).start()
        elif isinstance(order, EndProfile) and order.number in self._recording:
            self._recording[order.number].set()

    def _record(self, order: RecordProfile) -> None:
        stop = self._recording[order.number] = threading.Event()
        try:
            answer = Profiled(order.number, record(order.batches, order.limit_s, stop=stop))
        except Overloaded as error:
            answer = Profiled(order.number, b"", str(error))
        finally:
            del self._recording[order.number]
        self._reporter.tell(answer)

    def _confirm_idle(self, sender: Sender) -> None:
        self._reporter.tell(Idle(sender))


def _warm_up(model: Model, options: Options, blocks: Sequence[SharedBlock]) -> WarmLanes:
    warm = build_lanes(model, options)
    if options.on_gpu:
        for block in blocks:
            block.register()
    return warm
