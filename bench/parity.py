"""`make parity`: how far reduced precision and our own resize are from float32 and torchvision v2.

EfficientNet-Lite0 with its real weights, over the sample photographs and crops and zooms of them. The reference must
give many different labels: a model that says the same of everything would agree with anything.
"""

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench import parity_decode
from bench.console import finish
from bench.mix import PHOTOGRAPHS
from bench.parity_levels import BATCH, Pixels, about_levels, all_levels, canvases, levels_table, tf32
from bench.record import machine, new_record
from pipeline.graph import Graph
from pipeline.lanes import DTYPES, resolve_device
from pipeline.model import Model, ModelError, load_model
from pipeline.nvjpeg import NoJpegEngine
from pipeline.options import CUDA_CANVAS, DEFAULT_MODEL
from pipeline.reference import normalize, reference_levels

CROPS = 512
LEAST_LABELS = 50
_SEED = 7
_WIDTH = 120
_SMALLEST_SIDE = 16
_DTYPES = {"cuda": ("tf32", "fp16", "bf16"), "cpu": ("bf16",)}


@dataclass(frozen=True, slots=True)
class Agreement:
    """One way of computing against the reference.

    Attributes:
        top1: share of images with the same best class, 0 to 1.
        largest: largest difference of a probability, over all images and classes.
        widest_margin: how far the reference's best two classes were apart where the best differs; 0 if it never does.
    """

    name: str
    top1: float
    largest: float
    widest_margin: float


def photographs() -> list[Pixels]:
    """The sample photographs, uint8 [H, W, 3], in the order of their names."""
    return [_read(path) for path in sorted(PHOTOGRAPHS.glob("*.jpg"))]


def views(images: Sequence[Pixels], count: int = CROPS) -> list[Pixels]:
    """Windows of the photographs, from a tenth of a side to all of it, so that some are enlarged and some shrunk."""
    random = np.random.default_rng(_SEED)
    return [_window(images[number % len(images)], random) for number in range(count)]


def _read(path: Path) -> Pixels:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def _window(pixels: Pixels, random: np.random.Generator) -> Pixels:
    share = random.uniform(0.1, 1.0)
    height = max(_SMALLEST_SIDE, int(pixels.shape[0] * share))
    width = max(_SMALLEST_SIDE, int(pixels.shape[1] * share * random.uniform(0.6, 1.0)))
    top = random.integers(0, pixels.shape[0] - height + 1)
    left = random.integers(0, pixels.shape[1] - width + 1)
    return pixels[top : top + height, left : left + width]


def compare(name: str, found: Tensor, expected: Tensor) -> Agreement:
    """Two sets of probabilities, float32 [N, classes]."""
    differs = found.argmax(dim=1) != expected.argmax(dim=1)
    best_two = expected.topk(2, dim=1).values
    margins = (best_two[:, 0] - best_two[:, 1])[differs]
    return Agreement(
        name,
        top1=1.0 - differs.float().mean().item(),
        largest=(found - expected).abs().max().item(),
        widest_margin=margins.max().item() if len(margins) else 0.0,
    )


def probabilities(model: Model, images: Sequence[Pixels], dtype: str, device: torch.device) -> Tensor:
    """float32 [N, classes] on the CPU: the graph that is served, in `dtype`, without the compiler."""
    graph = Graph(model, CUDA_CANVAS, DTYPES[dtype]).to(device)

    def run(batch: Sequence[Pixels]) -> Tensor:
        logits: Tensor = graph.module(graph.transform(*canvases(batch, model.preprocess, device)))
        return logits

    with tf32(dtype == "tf32"):
        return _softmax_all(run, images, device)


def reference_probabilities(model: Model, images: Sequence[Pixels], device: torch.device) -> Tensor:
    """float32 [N, classes] on the CPU: torchvision v2 on the CPU, and the model as it was loaded, in float32."""
    module = copy.deepcopy(model.module).to(device)

    def run(batch: Sequence[Pixels]) -> Tensor:
        levels = torch.stack([reference_levels(pixels, model.preprocess) for pixels in batch])
        logits: Tensor = module(normalize(levels.to(device), model.preprocess))
        return logits

    with tf32(False):
        return _softmax_all(run, images, device)


def _softmax_all(run: Callable[[Sequence[Pixels]], Tensor], images: Sequence[Pixels], device: torch.device) -> Tensor:
    size = BATCH[device.type]
    batches = (images[start : start + size] for start in range(0, len(images), size))
    return torch.cat([run(batch).float().softmax(dim=1).cpu() for batch in batches])


@torch.inference_mode()
def measure(model: Model, images: Sequence[Pixels], device: torch.device) -> dict[str, Any]:
    """All comparisons.

    Raises:
        AssertionError: the reference gives too few labels for its agreement to mean anything.
    """
    reference = reference_probabilities(model, images, device)
    labels = len(set(reference.argmax(dim=1).tolist()))
    assert labels >= LEAST_LABELS, f"the reference gives {labels} labels to {len(images)} images: that proves little"
    single = probabilities(model, images, "fp32", device)
    rows = [compare("fp32 graph against torchvision v2 and the model", single, reference)]
    rows += [
        compare(f"{dtype} against fp32", probabilities(model, images, dtype, device), single)
        for dtype in _DTYPES[device.type]
    ]
    return {
        "images": len(images),
        "labels": labels,
        "agreement": rows,
        "levels": list(all_levels(model.preprocess, images, device)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0 if every resize is within its limit, else 1."""
    args = _parser().parse_args(argv)
    console = Console(highlight=False, width=_WIDTH)
    try:
        device = torch.device(resolve_device(args.device))
    except ModelError as error:
        console.print(f"[red]no measurement:[/] {error}")
        return 1
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    sources = photographs()
    console.print(f"{machine()}; {name}; {DEFAULT_MODEL}, {len(sources)} photographs and {args.crops} windows of them")
    with console.status("comparing"):
        results = measure(load_model(), [*sources, *views(sources, args.crops)], device)
    console.print(f"{results['images']} images, {results['labels']} different top-1 labels")
    console.print(_agreement_table(results["agreement"]))
    console.print(levels_table(results["levels"]))
    console.print(about_levels(device))
    decoded = _compare_decodes(console, sources, args.crops, device)
    conditions = {"device": name, "model": DEFAULT_MODEL, "weights": "its own", "canvas": CUDA_CANVAS}
    plain = {key: [asdict(row) for row in results[key]] for key in ("agreement", "levels")}
    plain["decodes"] = [_without_pixels(row) for row in decoded]
    finish(console, new_record("parity", name, conditions, results | plain), keep=not args.no_record)
    return 0 if all(row.is_within_limit for row in (*results["levels"], *decoded)) else 1


def _compare_decodes(
    console: Console, sources: Sequence[Pixels], crops: int, device: torch.device
) -> Sequence[parity_decode.Decodes]:
    files, model = parity_decode.encoded([*sources, *views(sources, crops)]), load_model()

    def agrees(row: parity_decode.Decodes) -> tuple[float, float]:
        with torch.inference_mode():
            gpu, cpu = (probabilities(model, pixels, "fp32", device) for pixels in (row.gpu, row.cpu))
        found = compare(row.name, gpu, cpu)
        return found.top1, found.largest

    try:
        rows = list(parity_decode.all_decodes(files, device))
    except NoJpegEngine as error:
        console.print(f"JPEGs on the GPU are not compared: {error}")
        return []
    console.print(parity_decode.decodes_table(rows, agrees))
    return rows


def _without_pixels(row: parity_decode.Decodes) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("name", "largest", "mean", "files", "refused", "limit")}


def _agreement_table(rows: Sequence[Agreement]) -> Table:
    table = Table("", "top-1 agrees", "largest difference of a probability", "widest margin that flipped")
    for row in rows:
        table.add_row(row.name, f"{100 * row.top1:.2f}%", f"{row.largest:.5f}", f"{row.widest_margin:.5f}")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.parity", description="Reduced precision against float32.")
    add = parser.add_argument
    add("--device", default="auto", help="auto (a GPU if there is one), cpu or cuda:N")
    add("--crops", type=int, default=CROPS, help=f"windows of the photographs (default {CROPS})")
    add("--no-record", action="store_true", help="write nothing into bench/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
