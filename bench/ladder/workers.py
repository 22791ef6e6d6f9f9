"""The processes under test: one worker a rung, the legacy service or this one."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.doctor.served import fetch_profile
from bench.ladder.answers import visit_batch_sizes
from bench.ladder.mailbox import VARIABLE, ask
from bench.ladder.rungs import SERVED, SEVERAL, Rung, habits_at
from bench.live import Live, means, read
from bench.mix import mix_images
from bench.ports import free_port
from bench.service import Service, ServiceError
from pipeline.cpus import available_cpus
from pipeline.options import padded_rows
from server.admin import MAX_BATCHES
from server.settings import parse

# The files that all rungs are sent.
MIX = "small"
# For the engine, and for those who call from the same machine.
_OTHER_CPUS = 2


def suggested_frontends() -> int:
    """Frontends for this machine: 14 on 16 CPUs, each decoding one image at a time; one on two CPUs."""
    return max(1, available_cpus() - _OTHER_CPUS)


@dataclass(frozen=True, slots=True)
class Launch:
    """What the workers of all rungs have in common.

    Attributes:
        frontends: processes that take calls, on the rung that has several.
        server_args: further settings of this service, which the legacy one does not have.
    """

    model: str
    weights: str
    device: str
    batch_size: int
    frontends: int = 1
    server_args: Sequence[str] = ()

    def command(self, rung: Rung, admin_port: int = 0) -> list[str]:
        """The command line of a rung's process; 0 is no admin port."""
        shared = ["--host", "127.0.0.1", "--port", "0", "--model", self.model, "--weights", self.weights]
        shared += ["--device", self.device, "--batch-size", str(self.batch_size)]
        if rung.number == SERVED:
            return [sys.executable, "-m", "bench.ladder.served", *shared, *self.server_args]
        if rung.number == SEVERAL:
            own = ["--frontends", str(self.frontends), "--frontend-port", "0", "--admin-port", str(admin_port)]
            return [sys.executable, "-m", "server", *own, *shared, *self.server_args]
        return [sys.executable, "-m", "bench.ladder.legacy", "--rung", str(rung.number), *shared]

    def padded_rows(self, number: int, batch_fill: float) -> float:
        """Rows that a rung computes on a GPU for a batch of so many images."""
        if number >= SERVED:
            settings = parse(self.server_args)
            return padded_rows(batch_fill, self.batch_size, settings.graph_sizes)
        return batch_fill if habits_at(number).varies else self.batch_size


class Worker(Service):
    """The process of one rung, for as long as the `with` block lasts. Raises as `Service` does.

    Attributes:
        settle_s: seconds from serving until batches of every size were answered; 0 where that was not asked for.
        connections: of each calling process, one to each of its processes that are called.
    """

    def __init__(self, rung: Rung, launch: Launch) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warmlane-ladder-")
        # A second profile in a process that replays CUDA graphs crashes if CUPTI was torn down after the first.
        super().__init__(environment={VARIABLE: self._folder.name, "TEARDOWN_CUPTI": "0"})
        # With several processes the one to profile is a child, which the mailbox does not reach.
        self._admin_port = free_port() if rung.number == SEVERAL else 0
        self._command = launch.command(rung, self._admin_port)
        self._mailbox = Path(self._folder.name)
        self.connections = launch.frontends if rung.number == SEVERAL else 1
        self.settle_s = 0.0

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            self._clean_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            super().__exit__(kind, *rest)
        except ServiceError:
            if kind is None:
                raise
            # Else what went wrong first is what must be told.
        finally:
            self._clean_up()

    def profile(self, batches: int, limit_s: float, timeout_s: float) -> Live:
        """What its engine does in its next `batches`, or in as many as come in `limit_s` seconds.

        Raises:
            ProbeError, ProfileError: there is no profile, or none after `timeout_s` seconds.
        """
        if self._admin_port:
            return means(read(fetch_profile(f"127.0.0.1:{self._admin_port}", min(batches, MAX_BATCHES), limit_s)))
        return ask(self._mailbox, batches, limit_s, timeout_s)

    def _clean_up(self) -> None:
        self._folder.cleanup()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Crew:
    """Workers of several rungs that start and settle at the same time, to be taken and ended one by one.

    Those that wait for their turn do nothing, but they hold a CUDA context and memory of the device.

    Attributes:
        launch: how they were started.
    """

    def __init__(self, rungs: Sequence[Rung], launch: Launch) -> None:
        self._workers = {rung: Worker(rung, launch) for rung in rungs}
        self.launch = launch
        self._starting: dict[Rung, Future[Worker]] = {}

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(len(self._workers), thread_name_prefix="start")
        self._starting = {rung: self._pool.submit(self._start, worker) for rung, worker in self._workers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for rung in tuple(self._starting):
            future = self._starting.pop(rung)
            if future.exception() is None:
                future.result().__exit__(None)
        self._pool.shutdown()

    def _start(self, worker: Worker) -> Worker:
        with ExitStack() as stack:
            stack.enter_context(worker)
            worker.settle_s = visit_batch_sizes(worker.target, mix_images(MIX), self.launch.batch_size)
            stack.pop_all()
        return worker

    @contextmanager
    def take(self, rung: Rung) -> Iterator[Worker]:
        """A rung's worker once it serves; it ends with the block.

        Raises:
            ServiceError, WarmlaneError: it does not serve.
        """
        with _entered(self._starting.pop(rung).result()) as worker:
            yield worker


@contextmanager
def _entered(worker: Worker) -> Iterator[Worker]:
    """As `with worker`, for one that has been entered already."""
    try:
        yield worker
    except BaseException as error:
        worker.__exit__(type(error), error, error.__traceback__)
        raise
    worker.__exit__(None)
