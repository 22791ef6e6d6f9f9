"""What runs in the processes of `bench.bare.Bare`, which says what each function measures."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bench.mix import mix_images
from pipeline.canvas import Geometry
from pipeline.decoders import decode_into_slot
from pipeline.embedded import Pipeline
from pipeline.graph import Graph, Program
from pipeline.lanes import DTYPES, compile_graph
from pipeline.request import Request
from server.build import build_pipeline, pipeline_options
from server.settings import parse

_WARM_UP_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class _Pieces:
    pipeline: Pipeline
    geometries: Sequence[Geometry]
    files: Sequence[bytes]
    program: Program | None = None


_pieces: list[_Pieces] = []


def build_forward(args: Sequence[str], mix: str) -> None:
    """What `forward_ms` and `decode_ms` need, as the server makes it; nothing where that runs on a GPU, or not at all.

    No other thread may have run a parallel loop before: of two teams of threads on as many cores as one fills, OpenMP
    lets every thread sleep between any two loops (EfficientNet-Lite0, batch 1, two cores: 18 ms instead of 11).
    """
    pipeline = _pipeline(args)
    if pipeline is None:
        return
    files = mix_images(mix)
    geometries = _fill_slots(pipeline, files)
    torch.set_num_threads(pipeline.options.threads)
    _pieces.append(_Pieces(pipeline, geometries, files, _program(pipeline)))


def build_engine(args: Sequence[str], mix: str) -> None:
    """What `engine_img_s` needs; nothing where that would run on a GPU, or not at all."""
    pipeline = _pipeline(args)
    if pipeline is None:
        return
    files = mix_images(mix)
    _pieces.append(_Pieces(pipeline, _fill_slots(pipeline, files), files))
    pipeline.start().result()


def _pipeline(args: Sequence[str]) -> Pipeline | None:
    torch.set_num_threads(1)
    settings = parse(args)
    options = pipeline_options(settings)
    if options.on_gpu or options.null_engine or options.skip_decode:
        return None
    return build_pipeline(settings)


def batch_size() -> int:
    """See `Bare.batch_size`."""
    return _pieces[0].pipeline.options.batch_size if _pieces else 0


@torch.inference_mode()
def forward_ms(batch: int, seconds: float) -> float:
    """See `Bare.forward_ms`."""
    pieces = _pieces[0]
    assert pieces.program is not None
    torch.set_num_threads(pieces.pipeline.options.threads)
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
    torch.set_num_threads(1)
    files = itertools.cycle(pieces.files)
    count = 0
    started_s = time.perf_counter()
    for _ in _until(seconds):
        request = _request(next(files))
        decode_into_slot(request, pieces.pipeline.limits, pieces.pipeline.model)
        request.release_slot()
        count += 1
    return 1e3 * (time.perf_counter() - started_s) / count


def _program(pipeline: Pipeline) -> Program:
    graph = Graph(pipeline.model, pipeline.canvas, DTYPES[pipeline.options.dtype])
    return compile_graph(graph, pipeline.model, pipeline.options)


def _fill_slots(pipeline: Pipeline, files: Sequence[bytes]) -> list[Geometry]:
    """Decode a file into each slot; how the crop samples it, by the slot's index."""
    requests = [
        Request(file, "", slot) for file, slot in zip(itertools.cycle(files), pipeline.slots.slots, strict=False)
    ]
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
