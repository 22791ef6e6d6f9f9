"""What `make parity` compares, on few images: the whole of it takes a GPU, or minutes."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from bench import parity, parity_levels
from pipeline.model import Model
from pipeline.preprocess import Preprocess

CPU = torch.device("cpu")


def test_there_are_enough_views_and_always_the_same() -> None:
    sources = parity.photographs()
    first, again = parity.views(sources), parity.views(sources)
    assert len(sources) + len(first) >= 500
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
    sides = [max(view.shape[:2]) for view in first]
    assert min(sides) < 100 < 400 < max(sides), "some are enlarged and some shrunk"


def test_equal_probabilities_agree() -> None:
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    assert parity.compare("same", scores, scores) == parity.Agreement("same", 1.0, 0.0, 0.0)


def test_a_flipped_answer_shows_its_margin() -> None:
    expected = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4]])
    found = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.4, 0.5]])
    row = parity.compare("flipped", found, expected)
    assert row.top1 == 0.5
    assert row.largest == pytest.approx(0.1)
    assert row.widest_margin == pytest.approx(0.1)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_resize_is_within_its_limit(interpolation: Any) -> None:
    sources = parity.photographs()
    row = parity_levels.levels_apart(parity.views(sources, 6), Preprocess(interpolation=interpolation), "fp32", CPU)
    assert row.name == parity_levels.OURS
    assert row.is_within_limit, row
    assert row.mean < 0.5


def test_torchvision_on_another_device_has_no_limit() -> None:
    row = parity_levels.torchvision_apart(parity.photographs()[:2], Preprocess(interpolation="bicubic"), CPU)
    assert (row.largest, row.mean) == (0, 0), "the same device on both sides"
    assert replace(row, largest=15).is_within_limit
    assert not replace(row, largest=15, limit=2).is_within_limit


def test_the_table_tells_limits_from_information() -> None:
    rows = [
        parity_levels.Levels(parity_levels.OURS, "bicubic", "fp16", 2, 0.1, 2),
        parity_levels.Levels(parity_levels.THEIRS, "bicubic", "uint8", 15, 0.2, None),
    ]
    console = Console(width=120)
    with console.capture() as printed:
        console.print(parity_levels.levels_table(rows))
    ours, theirs = (line for line in printed.get().splitlines() if "bicubic" in line)
    assert [cell.strip() for cell in ours.split("│")[1:-1]] == [
        parity_levels.OURS,
        "bicubic",
        "fp16",
        "2",
        "0.1000",
        "2",
    ]
    assert [cell.strip() for cell in theirs.split("│")[4:-1]] == ["15", "0.2000", "none"]


@torch.inference_mode()
def test_float32_agrees_with_torchvision(default_model: Model) -> None:
    images = parity.photographs()
    reference = parity.reference_probabilities(default_model, images, CPU)
    row = parity.compare("fp32", parity.probabilities(default_model, images, "fp32", CPU), reference)
    assert row.top1 == 1.0, row
    assert row.largest < 0.02, row


def test_too_few_labels_prove_nothing(default_model: Model) -> None:
    with pytest.raises(AssertionError, match="that proves little"):
        parity.measure(default_model, parity.photographs(), CPU)


def test_tf32_is_left_as_it_was() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with parity_levels.tf32(not before):
        assert torch.backends.cuda.matmul.allow_tf32 is not before
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_the_last_line_is_the_record(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "LEAST_LABELS", 2)
    assert parity.main(["--device", "cpu", "--crops", "1", "--no-record"]) == 0
    printed = capsys.readouterr().out
    assert "v2 runs on the CPU here" in printed
    record = json.loads(printed.splitlines()[-1])
    assert {row["name"] for row in record["results"]["levels"]} == {parity_levels.OURS}
    assert record["bench"] == "parity"
    assert record["results"]["images"] == 6
    assert {row["name"] for row in record["results"]["agreement"]} >= {"bf16 against fp32"}
