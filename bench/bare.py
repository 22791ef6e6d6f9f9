"""What the machine could do at best: the forward, the decoder and the engine by themselves, in a process of their own.

The process holds what the server holds under the same settings, and is idle while it is not asked, so that its measurements can
alternate with those of a service.
"""

import contextlib
import itertools
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from bench.mix import mix_images
from pipeline.canvas import Geometry
from pipeline.embedded import Pipeline, decode_into_slot
from pipeline.graph import Graph, Program, build_program
from pipeline.request import Request
from server import app
from server.settings import Settings, command

_WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class _Pieces:
    pipeline: Pipeline
    program: Program
    geometries: Sequence[Geometry]
    files: Sequence[bytes]


_pieces: list[_Pieces] = []


class Bare:
    """The process. Close it, or use it in a `with` block; entering waits until the model is compiled and warm.

    Args:
        args: command-line settings, as the server takes them.
        mix: the files whose pixels are used, a key of `bench.mix.MIXES`.
    """

    def __init__(self, args: Sequence[str], mix: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_build, initargs=(tuple(args), mix))
        self.ready: Future[str] = self._pool.submit(execution)

    def forward_ms(self, batch: int, seconds: float) -> float:
        """Median milliseconds of one forward of `batch` images whose pixels lie in memory."""
        return self._pool.submit(forward_ms, batch, seconds).result()

    def engine_img_s(self, in_flight: int, seconds: float) -> float:
        """Images per second of batcher, lane and forward, fed with pixels that lie in their slots."""
        return self._pool.submit(engine_img_s, in_flight, seconds).result()

    def decode_ms(self, seconds: float) -> float:
        """Mean milliseconds of one thread per image: header, decode, and the window into the slot."""
        return self._pool.submit(decode_ms, seconds).result()

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        self.ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_settings(args: Sequence[str]) -> Settings:
    """The settings that the server would run with, environment included.

    Raises:
        click.UsageError: for what the server would refuse.
    """
    found: list[Settings] = []

    def keep(settings: Settings) -> int:
        found.append(settings)
        return 0

    with contextlib.suppress(SystemExit):
        command(keep).main(list(args), standalone_mode=False)
    return found[0]


def execution() -> str:
    """How the model runs, in words."""
    return _pieces[0].program.execution


@torch.inference_mode()
def forward_ms(batch: int, seconds: float) -> float:
    """See `Bare.forward_ms`."""
    pieces = _pieces[0]
    canvas = pieces.pipeline.slots.block[:batch].permute(0, 3, 1, 2)
    geometry = torch.tensor([geometry.row() for geometry in pieces.geometries[:batch]])
    times_ms = []
    for _ in _until(seconds):
        started_s = time.perf_counter()
        pieces.program.run(canvas, geometry)
        times_ms.append(1e3 * (time.perf_counter() - started_s))
    return float(np.median(times_ms[int(_WARM_UP_SHARE * len(times_ms)) :]))


def engine_img_s(in_flight: int, seconds: float) -> float:
    """See `Bare.engine_img_s`."""
    room = threading.Semaphore(in_flight)
    count = 0
    started_s = time.perf_counter()
    for _ in _until(seconds):
        room.acquire()
        request = _decoded_request()
        request.future.add_done_callback(lambda _: room.release())
        _pieces[0].pipeline.engine.submit(request)
        count += 1
    for _ in range(in_flight):
        room.acquire()
    return count / (time.perf_counter() - started_s)


def decode_ms(seconds: float) -> float:
    """See `Bare.decode_ms`."""
    pieces = _pieces[0]
    files = itertools.cycle(pieces.files)
    count = 0
    started_s = time.perf_counter()
    for _ in _until(seconds):
        request = _request(next(files))
        decode_into_slot(request, pieces.pipeline.limits, pieces.pipeline.model)
        request.release_slot()
        count += 1
    return 1e3 * (time.perf_counter() - started_s) / count


def _build(args: Sequence[str], mix: str) -> None:
    settings = parse_settings(args)
    options = app._options(settings)
    pipeline = Pipeline(app._load_model(settings), options, app._limits(settings))
    pipeline.start().result()
    torch.set_num_threads(options.threads)
    files = mix_images(mix)
    _pieces.append(_Pieces(pipeline, _program(pipeline), _fill_slots(pipeline, files), files))


def _program(pipeline: Pipeline) -> Program:
    model, options = pipeline.model, pipeline.options
    graph = Graph(model, pipeline.canvas)
    if not options.compile:
        return Program(graph, "eager: --no-compile")
    key = f"{model.version}-{model.preprocess}-{model.activation}"
    return build_program(graph, key, options.batch_size, pipeline.canvas, torch.device("cpu"), options.compile_cache)


def _fill_slots(pipeline: Pipeline, files: Sequence[bytes]) -> list[Geometry]:
    """Decode a file into each slot; how the crop samples it, by the slot's index."""
    requests = [Request(file, "", slot) for file, slot in zip(itertools.cycle(files), pipeline.slots.slots, strict=False)]
    for request in requests:
        decode_into_slot(request, pipeline.limits, pipeline.model)
    return [request.geometry for request in requests if request.geometry]


def _decoded_request() -> Request:
    """A request whose pixels lie in its slot, of an earlier decode."""
    request = _request(b"")
    assert request.slot is not None
    request.geometry = _pieces[0].geometries[request.slot.index]
    return request


def _request(file: bytes) -> Request:
    return Request(file, "", _pieces[0].pipeline.slots.acquire()[0])


def _until(seconds: float) -> Iterator[None]:
    stop_s = time.monotonic() + seconds
    while time.monotonic() < stop_s:
        yield None
