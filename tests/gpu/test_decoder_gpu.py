"""Two layers of the decoder on a real GPU: every rung computes the same, and the captured one is one launch a token."""

from collections.abc import Iterator

import pytest
import torch

from bench.decoder.agreement import compare
from bench.decoder.generate import GrowingWriter
from bench.decoder.model import Sizes, build, prompts
from bench.decoder.picking import greedy, race
from bench.decoder.rungs import RUNGS, Rung, Way, compiled_step, make_writer
from bench.trace import profile_batches

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # torch's graph trees capture an empty graph of their own to open a memory pool.
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
]

GPU = torch.device("cuda")
TWO = Sizes(layers=2)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with torch.no_grad():
        yield
    torch.compiler.reset()


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_agrees_with_eager_fp32(rung: Rung) -> None:
    model = build(TWO, GPU, rung.dtype)
    writer = make_writer(rung.way, model, compiled_step(rung.way, model), greedy, rung.batch)
    reference = GrowingWriter(build(TWO, GPU, torch.float32), greedy)
    found = compare(reference, writer, prompts(rung.batch, 32, TWO, GPU), 40, rung.dtype)
    assert found.is_good, found
    assert found.forced >= 20


@pytest.mark.parametrize("way", [Way.REDUCE_OVERHEAD, Way.CAPTURED])
def test_a_captured_step_is_launched_as_one(way: Way) -> None:
    model = build(TWO, GPU, torch.float16)
    writer = make_writer(way, model, compiled_step(way, model), race, 1)
    writer.start(prompts(1, 32, TWO, GPU))
    trace = profile_batches(writer.next, batches=20, warmup=4)
    # Before each replay of a graph that draws, torch writes the generator's seed and offset to the device: two fills.
    # Beside the graph of reduce-overhead: its inputs' copies, sampling and bookkeeping.
    assert trace.launches <= (3 if way is Way.CAPTURED else 16)
    assert trace.kernels > 20
    assert trace.syncs == 0


def test_a_captured_race_draws_anew_at_every_step() -> None:
    model = build(TWO, GPU, torch.float16)
    writer = make_writer(Way.CAPTURED, model, compiled_step(Way.CAPTURED, model), race, 4)
    writer.start(prompts(4, 32, TWO, GPU))
    for _ in range(60):
        writer.next()
    once = writer.written()
    writer.start(prompts(4, 32, TWO, GPU))
    for _ in range(60):
        writer.next()
    assert (once != writer.written()).float().mean() > 0.5
