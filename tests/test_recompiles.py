"""A compilation after warm-up is seen by the engine, counted, and told to whoever watches.

No fakes: `torch.compile` itself runs, with eager kernels for a backend so that no C++ compiler is needed.
"""

import math

import pytest
import torch
from torch import Tensor

from pipeline import metrics
from pipeline.batcher import Batcher
from pipeline.canvas import Axis, Geometry
from pipeline.engine import Engine, Warm
from pipeline.graph import Program
from pipeline.lane import CpuLane
from pipeline.request import Request
from pipeline.slots import SlotPool

_CANVAS = 4


def _forward(canvas: Tensor, geometry: Tensor) -> tuple[Tensor, Tensor]:
    scores = canvas.float().mean(dim=(2, 3))
    return scores, torch.zeros_like(scores, dtype=torch.int32)


def _warm_up() -> Warm:
    torch._dynamo.reset()
    run = torch.compile(_forward, backend="eager", dynamic=False)
    lane = CpuLane(Program(run, "compiled"), batch_size=2, canvas=_CANVAS)
    with torch.inference_mode():
        lane.run_example()
    return Warm([lane], "compiled")


def _request(slots: SlotPool) -> Request:
    axis = Axis(1.0, 0.0, _CANVAS)
    return Request(b"", "", slots.acquire()[0], math.inf, geometry=Geometry(axis, axis))


@pytest.mark.parametrize(("batch", "told"), [(2, 0), (1, 1)])
def test_a_new_shape_is_told_and_a_known_one_is_not(batch: int, told: int) -> None:
    tellings: list[int] = []
    slots = SlotPool(2, _CANVAS)
    engine = Engine(_warm_up, Batcher(2, max_wait_ms=2000.0 if batch == 2 else 0.0))
    engine.on_recompile = lambda: tellings.append(1)
    before = metrics.RECOMPILES._value.get()
    engine.start()
    engine.ready.result(60)
    requests = [_request(slots) for _ in range(batch)]
    for request in requests:
        engine.submit(request)
    assert [request.future.result(60).batch_fill for request in requests] == [batch] * batch
    engine.stop()
    assert len(tellings) == told
    assert metrics.RECOMPILES._value.get() - before == told
