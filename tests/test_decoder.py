"""The decoder's rungs with two narrow layers on the CPU: they compute the same. Proves nothing about speed."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from bench.decoder.__main__ import main
from bench.decoder.agreement import TOLERANCE, Agreement, compare
from bench.decoder.floor import Ceilings, parameters, step_floor
from bench.decoder.generate import GrowingWriter, StaticWriter
from bench.decoder.measure import Bench, Plan, Row, with_profile
from bench.decoder.model import Decoder, GrowingCache, Sizes, StaticCache, build, prompts
from bench.decoder.picking import Pick, greedy, multinomial, race
from bench.decoder.report import findings, gain, print_rows
from bench.decoder.rungs import RUNGS, Rung, compiled_step, make_writer, pick_rungs
from bench.rungs import draw_records
from bench.trace import TraceSummary

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TINY = Sizes(layers=2, width=96, heads=6, kv_heads=2, feed_forward=160, vocabulary=512, context=96)
# After it the tiny model picks fourteen tokens before two are nearly as likely.
PROMPT = 18
CEILINGS = Ceilings(copy_bytes_s=1e12, matmul_flops_s={torch.float32: 1e14, torch.float16: 1e15})
ON_CPU = [rung for rung in RUNGS if not rung.needs_gpu]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def models() -> dict[torch.dtype, Decoder]:
    return {dtype: build(TINY, CPU, dtype) for dtype in (torch.float32, torch.float16)}


def named(rung: Rung) -> str:
    return rung.name


@pytest.mark.parametrize("rung", ON_CPU, ids=named)
def test_a_rung_agrees_with_eager_fp32(models: dict[torch.dtype, Decoder], rung: Rung) -> None:
    model = models[rung.dtype]
    writer = make_writer(rung.way, model, compiled_step(rung.way, model), greedy, rung.batch)
    found = compare(
        GrowingWriter(models[torch.float32], greedy), writer, prompts(rung.batch, PROMPT, TINY, CPU), 40, rung.dtype
    )
    assert found.is_good, found
    assert found.forced >= 20
    assert found.free >= 10


def test_a_batch_agrees_with_eager_fp32(models: dict[torch.dtype, Decoder]) -> None:
    model = models[torch.float32]
    writer = StaticWriter(model, model, greedy, batch=4)
    found = compare(GrowingWriter(model, greedy), writer, prompts(4, PROMPT, TINY, CPU), 40, torch.float32)
    assert found.is_good, found
    assert found.free > 40


def test_another_arithmetic_is_found_out(models: dict[torch.dtype, Decoder]) -> None:
    def shifted(tokens: Tensor, positions: Tensor, caches: list[StaticCache], seen: int) -> Tensor:
        logits: Tensor = models[torch.float32](tokens, positions - 1, caches, seen)
        return logits

    writer = StaticWriter(models[torch.float32], shifted, greedy, batch=1)  # type: ignore[arg-type]
    reference = GrowingWriter(models[torch.float32], greedy)
    found = compare(reference, writer, prompts(1, PROMPT, TINY, CPU), 40, torch.float32)
    assert found.logits_diff > 10 * found.tolerance
    assert found.wrong > 0
    assert not found.is_good


def test_a_greedy_text_wanders(models: dict[torch.dtype, Decoder]) -> None:
    writer = GrowingWriter(models[torch.float32], greedy)
    writer.start(prompts(1, PROMPT, TINY, CPU))
    for _ in range(39):
        writer.next()
    assert writer.written().shape == (1, 40)
    assert len(set(writer.written().flatten().tolist())) >= 5


def test_blocks_compile_into_one_graph_that_agrees(models: dict[torch.dtype, Decoder]) -> None:
    """As rung 6 compiles them, without the code generator and the capture."""
    counter = CompileCounter()
    torch.compiler.reset()
    model = build(TINY, CPU, torch.float32)
    for block in model.blocks:
        block.compile(backend=counter, fullgraph=True, dynamic=False)
    writer = StaticWriter(models[torch.float32], model, greedy, batch=1)
    reference = GrowingWriter(models[torch.float32], greedy)
    found = compare(reference, writer, prompts(1, PROMPT, TINY, CPU), 10, torch.float32)
    torch.compiler.reset()
    assert found.is_good, found
    assert counter.frame_count == 1


def test_a_static_cache_holds_what_torch_cat_gives() -> None:
    growing, static = GrowingCache(), StaticCache(2, TINY, torch.zeros(1))
    seen = 0
    for length in (5, 1, 1, 1):
        keys, values = torch.randn(2, 2, TINY.kv_heads, length, TINY.head).unbind(0)
        positions = torch.arange(seen, seen + length)
        seen += length
        grown, kept = growing.update(keys, values, positions), static.update(keys, values, positions)
        for all_grown, all_kept in zip(grown, kept, strict=True):
            assert torch.equal(all_kept[:, :, :seen], all_grown)
            assert not all_kept[:, :, seen:].any()
            assert all_kept.shape[2] == TINY.context
    assert static.keys.data_ptr() == kept[0].data_ptr()


@pytest.mark.parametrize("pick", [multinomial, race])
def test_sampling_draws_from_the_softmax(pick: Pick) -> None:
    torch.manual_seed(3)
    draws = 40_000
    logits = torch.tensor([0.0, 1.0, -2.0, 2.5, 0.5, -0.5])
    expected = draws * logits.softmax(0)
    drawn = torch.bincount(pick(logits.expand(draws, -1)).flatten(), minlength=len(logits))
    # 20.5 is the 99.9 % point of chi-square with five degrees of freedom.
    assert float(((drawn - expected).square() / expected).sum()) < 20.5


def test_greedy_takes_the_largest() -> None:
    assert greedy(torch.tensor([[0.0, 3.0, 1.0], [5.0, 0.0, 1.0]])).tolist() == [[1], [0]]


def test_the_model_has_135_m_parameters() -> None:
    sizes = Sizes()
    layer = (9 + 2 * 3) * 64 * 576 + 576 * 576 + 3 * 576 * 1536 + 2 * 576
    assert parameters(sizes) == 49_152 * 576 + 30 * layer + 576 == 134_515_008


def test_the_floor_is_weights_and_caches_over_bandwidth() -> None:
    weights = parameters(Sizes())
    empty = step_floor(Sizes(), torch.float16, 1, 0, CEILINGS)
    assert empty.floor_ms == empty.memory_ms == pytest.approx(2 * weights / 1e12 * 1e3)
    # Keys and values of 30 layers, 3 heads of 64, 100 tokens, two bytes each, four texts.
    four = step_floor(Sizes(), torch.float16, 4, 100, CEILINGS)
    assert four.bytes_moved - empty.bytes_moved == 2 * 30 * 3 * 64 * 100 * 2 * 4
    assert step_floor(Sizes(), torch.float32, 1, 0, CEILINGS).floor_ms == pytest.approx(2 * empty.floor_ms)
    assert empty.compute_ms == pytest.approx(2 * weights / 1e15 * 1e3)


def test_rungs_are_climbed_from_the_bottom() -> None:
    assert [rung.number for rung in RUNGS] == list(range(9))
    assert [rung.number for rung in pick_rungs([6, 0])] == [0, 6]
    assert [rung.number for rung in RUNGS if rung.needs_gpu] == [5, 6, 7, 8]
    with pytest.raises(ValueError, match="no rung 9"):
        pick_rungs([9])


def row(number: int, tokens_s: float) -> Row:
    rung = RUNGS[number]
    agreement = Agreement(TOLERANCE[rung.dtype], 0.001, 30, 10, 0)
    step_ms = 1e3 * rung.batch / tokens_s
    return Row(number, rung.name, "float16", rung.batch, tokens_s, rung.published, step_ms, 0.07, 0.1, agreement)


def test_findings_name_the_goals_and_whatever_disagrees() -> None:
    rows = [row(0, 100.0), row(6, 1_500.0), row(7, 5_000.0)]
    assert gain(rows) == 50.0
    assert gain(rows[:2]) is None
    times, graph = findings(rows)
    assert "50 times" in times
    assert "met" in times
    assert "1,500 tokens/s" in graph
    bad = replace(rows[0], agreement=replace(rows[0].agreement, wrong=1))
    slower = row(1, 50.0)
    disagrees, loses = findings([bad, slower])
    assert "rung 0 (first draft) does not compute the same" in disagrees
    assert "rung 1 (half precision) is slower than rung 0" in loses


def test_the_doctor_names_what_holds_a_rung_up() -> None:
    floor = step_floor(Sizes(), torch.float32, 1, 100, CEILINGS)
    trace = TraceSummary(24, wall_ms=10.0, kernel_ms=2.0, launch_ms=7.5, sync_ms=0.5, kernels=1_100, launches=1_100)
    seen = with_profile(row(0, 100.0), trace, floor)
    assert seen.verdict == "launch-bound"
    assert seen.gpu_busy == pytest.approx(0.2)
    assert any("1100 launches" in sentence for sentence in seen.evidence)
    console = Console(width=160, record=True, file=io.StringIO())
    print_rows(console, [seen])
    text = console.export_text()
    assert "100.0 [42]" in text
    assert "20%" in text


def test_a_step_is_timed_without_the_prompt(models: dict[torch.dtype, Decoder]) -> None:
    bench = Bench(models, CEILINGS, Plan(prompt=8, tokens=20, checked=10, seconds=0.01))
    found = bench.row(RUNGS[3])
    assert found.tokens_s == pytest.approx(1e3 / found.step_ms)
    assert found.floor_ms == pytest.approx(step_floor(TINY, torch.float16, 1, 18, CEILINGS).floor_ms)
    assert found.verdict is None


SHORT = ["--device", "cpu", "--vocabulary", "512", "--tokens", "10", "--check-tokens", "10", "--seconds", "0.1"]


def test_end_to_end_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--rungs", "0,3,4,6", "--no-record"]) == 0
    out = capsys.readouterr().out
    assert "no GPU:" in out
    record = json.loads(out.splitlines()[-1])
    assert record["bench"] == "decoder"
    assert record["conditions"]["rungs_left_out_without_a_gpu"] == [6]
    rungs = record["results"]["rungs"]
    assert [rung["number"] for rung in rungs] == [0, 3, 4]
    for rung in rungs:
        assert rung["tokens_s"] > 0
        assert rung["gpu_busy"] is None
        assert rung["agreement"]["wrong"] == 0
    assert [trial["letter"] for trial in record["results"]["experiments"]] == ["-", "A", "B", "C", "D"]
    assert all(trial["gain"] > 0 for trial in record["results"]["experiments"][1:])
    assert record["results"]["failed"] == {}


def test_a_rung_that_fails_is_recorded_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: GrowingWriter) -> None:
        raise AssertionError("no capture")

    monkeypatch.setattr(GrowingCache, "update", fails)
    monkeypatch.setattr(GrowingWriter, "next", fails)
    assert main([*SHORT, "--rungs", "0,4", "--experiments", "CD", "--no-record"]) == 1
    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert results["rungs"] == []
    assert set(results["failed"]) == {"rung 0", "rung 4", "experiment -", "experiment D"}
    (forward,) = [trial for trial in results["experiments"] if trial["letter"] == "C"]
    assert forward["tokens_s"] > 0
    assert forward["gain"] is None


def test_what_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--tokens", "250"]) == 1
    assert "need 282 positions, the context has 256" in capsys.readouterr().out
    assert main(["--device", "cpu", "--rungs", "9"]) == 1
    assert "no rung 9" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--experiments", "AX"])
    assert "no experiment X" in capsys.readouterr().err


def test_the_picture_is_drawn_beside_the_record(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from bench.decoder import picture

    rungs = [
        {"number": rung.number, "name": rung.name, "batch": rung.batch, "tokens_s": 100.0 * 1.6**rung.number}
        | {"published_tokens_s": rung.published, "floor_ms": 0.07, "gpu_busy": 0.2, "kernels": 300.0}
        for rung in RUNGS
    ]
    record = tmp_path / "decoder.json"
    conditions = {"device": "x", "parameters": 135e6}
    record.write_text(json.dumps({"date": "y", "conditions": conditions, "results": {"rungs": rungs}}))
    assert draw_records(picture.draw, [str(record)]) == 0
    assert (tmp_path / "decoder.png").stat().st_size > 10_000
    assert (tmp_path / "decoder.svg").stat().st_size > 10_000
