"""The two fast ways of resizing, matrices in the graph and a window on the CPU, against torchvision v2.

The reference is `reference_levels`: torchvision's own uint8 kernels over the whole image.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline import canvas
from pipeline.canvas import (
    FILTER_SUPPORT,
    Geometry,
    crop_geometry,
    identity_geometry,
    place,
    resize_crop,
    resizes_in_graph,
    upright,
)
from pipeline.graph import Graph
from pipeline.model import Model
from pipeline.preprocess import Interpolation, Preprocess
from pipeline.reference import normalize, reference_levels
from pipeline.transforms import Transform, resample_matrix, resize_levels

pytestmark = pytest.mark.usefixtures("one_thread")

Pixels = NDArray[np.uint8]

# Grey levels, before normalisation.
LIMIT: dict[Interpolation, int] = {"bilinear": 1, "bicubic": 2}
# Pillow and torchvision both round a bilinear twice, with weights of other precision: where both passes meet an exact
# half (here 320 pixels to 256) they end 2 levels apart, in some 4 of 100,000 values of noise.
PILLOW_LIMIT: dict[Interpolation, int] = {"bilinear": 2, "bicubic": 2}

CHAINS: dict[str, dict[str, Any]] = {
    "256 crop 224": {},
    "224 crop 224": {"resize": 224},
    "232 crop 224": {"resize": 232},
    "squash 192x256": {"resize": (192, 256), "crop": (192, 256)},
    "200 crop 96x160": {"resize": 200, "crop": (96, 160)},
}

# (height, width); 256 and 320 give many exact halves at 224 and 256, where roundings go either way.
SIZES = (
    *((1, 1), (1, 2), (2, 3), (7, 5), (100, 100), (224, 224), (256, 256), (300, 451), (320, 320), (375, 500)),
    *((1, 4000), (4000, 1), (3, 1000), (1000, 3), (37, 2000), (2000, 37)),
    *((1080, 1920), (3000, 4000), (4000, 3000)),
)


def noise(height: int, width: int) -> Pixels:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> Pixels:
    y, x = np.linspace(0, 1, height, dtype=np.float32)[:, None], np.linspace(0, 1, width, dtype=np.float32)[None]
    return np.stack([255 * y + 0 * x, 128 * x + 127 * y, 127.5 + 127.5 * np.sin(3 * x + 5 * y)], axis=2).astype(
        np.uint8
    )


def checker(height: int, width: int) -> Pixels:
    image = np.zeros((height, width, 3), np.uint8)
    image[::2, ::2] = image[1::2, 1::2] = 255
    return image


MAKERS: tuple[Callable[[int, int], Pixels], ...] = (noise, smooth, checker)


@cache
def synthetic() -> dict[str, Pixels]:
    """Noise at every size, the other two up to a megapixel."""
    images = {}
    for size in SIZES:
        for maker in MAKERS if size[0] * size[1] < 1_000_000 else MAKERS[:1]:
            images[f"{maker.__name__} {size[0]}x{size[1]}"] = maker(*size)
    return images


def images(photographs: dict[str, Pixels]) -> Iterator[tuple[str, Pixels]]:
    yield from ((f"photo {name}", pixels) for name, pixels in photographs.items())
    yield from synthetic().items()


def reference(image: Pixels, preprocess: Preprocess) -> torch.Tensor:
    """float32 [3, *crop]: what torchvision makes of the image.

    It would resize 1 x 4000 pixels to 256 x 1,024,000 first, so of a line only the middle 64 pixels are shown to it.
    The scale stays the same, 1 / resize, the crop moves by whole pixels, and what it samples ends before the cut: all
    three are asserted.
    """
    height, width = image.shape[:2]
    if min(height, width) > 1 or max(height, width) <= 64 or not isinstance(preprocess.resize, int):
        return reference_levels(image, preprocess).float()
    first = max(height, width) // 2 - 32
    middle = image[first : first + 64] if width == 1 else image[:, first : first + 64]
    whole = crop_geometry(height, width, preprocess)
    cut = crop_geometry(middle.shape[0], middle.shape[1], preprocess)
    long, cut_long, size = (whole.y, cut.y, preprocess.crop[0]) if width == 1 else (whole.x, cut.x, preprocess.crop[1])
    assert cut_long.scale == long.scale == 1 / preprocess.resize
    assert cut_long.offset == pytest.approx(long.offset - first, abs=1e-9)
    sampled = cut_long.window(size, FILTER_SUPPORT[preprocess.interpolation])
    assert sampled[0] > 0
    assert sampled[1] < 64
    return reference_levels(middle, preprocess).float()


def in_graph(image: Pixels, preprocess: Preprocess, side: int) -> torch.Tensor | None:
    """float32 [3, *crop] by matrices; None where the image's window is larger than the canvas."""
    slot = np.full((side, side, 3), 255, np.uint8)  # what an earlier image left there must not matter
    geometry = place(image, 1, preprocess, slot)
    if geometry == identity_geometry(preprocess):
        return None
    levels = resize_levels(*batch_of_one(slot, geometry), preprocess, torch.float32)[0]
    assert torch.equal(levels, levels.round().clamp(0, 255))
    return levels


def on_cpu(image: Pixels, preprocess: Preprocess) -> torch.Tensor:
    """float32 [3, *crop] as `place` leaves it in a canvas no larger than the crop."""
    side = max(preprocess.crop)
    slot = np.full((side, side, 3), 255, np.uint8)
    assert place(image, 1, preprocess, slot) == identity_geometry(preprocess)
    return planes(slot[: preprocess.crop[0], : preprocess.crop[1]])


def by_pillow(image: Pixels, preprocess: Preprocess) -> torch.Tensor:
    geometry = crop_geometry(image.shape[0], image.shape[1], preprocess)
    return planes(canvas._resize_box(image, geometry, preprocess))


def batch_of_one(slot: Pixels, geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(slot).permute(2, 0, 1)[None], torch.tensor([geometry.row()])


def planes(crop: Pixels) -> torch.Tensor:
    return torch.tensor(crop).permute(2, 0, 1).float()


@dataclass
class Differences:
    """The largest difference by kind of image, and every image that is over the limit."""

    limit: int
    largest: dict[str, float] = field(default_factory=dict)
    differing: dict[str, list[float]] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    compared: int = 0

    def add(self, name: str, levels: torch.Tensor, expected: torch.Tensor) -> None:
        assert levels.shape == expected.shape
        apart = (levels - expected).abs()
        kind, largest = name.split()[0], apart.max().item()
        self.largest[kind] = max(self.largest.get(kind, 0.0), largest)
        self.differing.setdefault(kind, []).append((apart > 0).float().mean().item())
        self.compared += 1
        if largest > self.limit:
            self.over.append(f"{name}: {largest:.0f} levels in {(apart > self.limit).float().mean():.1e} of the values")

    @property
    def worst(self) -> str:
        """Of photographs, and of all others."""
        others = max(largest for kind, largest in self.largest.items() if kind != "photo")
        photographs = f"{self.largest['photo']:.0f}" if "photo" in self.largest else "-"
        return f"{photographs}/{others:.0f}"

    def __str__(self) -> str:
        kinds = (
            f"{kind} {largest:.0f} ({100 * np.mean(self.differing[kind]):.2g}% of values differ)"
            for kind, largest in self.largest.items()
        )
        return f"largest difference in levels over {self.compared} images: " + ", ".join(kinds)


Ways = dict[str, Callable[[Pixels, Preprocess], torch.Tensor | None]]
WAYS: Ways = {
    "canvas 544": lambda image, preprocess: in_graph(image, preprocess, 544),
    "canvas 1100": lambda image, preprocess: in_graph(image, preprocess, 1100) if image.shape[0] == 1080 else None,
    "canvas 288": lambda image, preprocess: in_graph(image, preprocess, 288),
    "CPU": on_cpu,
    "Pillow": lambda image, preprocess: by_pillow(image, preprocess) if isinstance(preprocess.resize, int) else None,
}


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("chain", CHAINS)
def test_levels_are_torchvisions(
    chain: str, interpolation: Interpolation, photographs: dict[str, Pixels], capsys: pytest.CaptureFixture[str]
) -> None:
    preprocess = Preprocess(**CHAINS[chain], interpolation=interpolation)
    limits = dict.fromkeys(WAYS, LIMIT) | {"Pillow": PILLOW_LIMIT}
    found = {way: Differences(limits[way][interpolation]) for way in WAYS}
    for name, image in images(photographs):
        expected = reference(image, preprocess)
        for way, levels_of in WAYS.items():
            levels = levels_of(image, preprocess)
            if levels is not None:
                found[way].add(name, levels, expected)
    worst = ", ".join(f"{way} {differences.worst}" for way, differences in found.items() if differences.compared)
    with capsys.disabled():
        print(f"\n  {chain}, {interpolation}: largest difference in levels, photographs/others: {worst}", end="")
    assert not any(differences.over for differences in found.values()), "\n".join(
        f"{way}: {line}" for way, differences in found.items() for line in [str(differences), *differences.over]
    )
    assert found["canvas 544"].compared > 20
    assert found["CPU"].compared == len(photographs) + len(synthetic())


def test_half_precision_stays_within_the_limits(photographs: dict[str, Pixels]) -> None:
    for interpolation, limit in LIMIT.items():
        preprocess = Preprocess(resize=224, interpolation=interpolation)
        found = Differences(limit)
        for name, image in photographs.items():
            slot = np.zeros((544, 544, 3), np.uint8)
            inputs = batch_of_one(slot, place(image, 1, preprocess, slot))
            levels = resize_levels(*inputs, preprocess, torch.float16)[0]
            found.add(f"photo {name}", levels.float(), reference(image, preprocess))
        assert not found.over, f"{interpolation}: {found}"


def test_rows_of_a_batch_are_apart(photographs: dict[str, Pixels]) -> None:
    preprocess = Preprocess(interpolation="bicubic")
    slots = np.zeros((len(photographs), 544, 544, 3), np.uint8)
    rows = [place(image, 1, preprocess, slot).row() for image, slot in zip(photographs.values(), slots, strict=True)]
    canvases, geometry = torch.from_numpy(slots).permute(0, 3, 1, 2), torch.tensor(rows)
    together = resize_levels(canvases, geometry, preprocess, torch.float32)
    for index, name in enumerate(photographs):
        alone = resize_levels(canvases[index : index + 1], geometry[index : index + 1], preprocess, torch.float32)[0]
        apart = (together[index] - alone).abs().max().item()
        assert apart <= 1, f"{name}: {apart} levels from itself in a batch of its own"


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_matrix_rows_sum_to_one_inside_the_image(interpolation: Interpolation) -> None:
    axes = torch.tensor([[2.0, 30.5, 510.0], [0.01, 0.2, 3.0], [1.0, 0.0, 64.0], [8.0, 0.0, 512.0]])
    matrices = resample_matrix(axes, 64, 544, interpolation)
    assert matrices.shape == (4, 64, 544)
    torch.testing.assert_close(matrices.sum(dim=2), torch.ones(4, 64))
    for matrix, extent in zip(matrices, axes[:, 2].int().tolist(), strict=True):
        assert not matrix[:, extent:].any()
    assert torch.equal(matrices[2, :, :64], torch.eye(64))


def test_small_crops_take_torchs_kernel_and_long_images_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = []

    def resize_box(image: Pixels, geometry: Geometry, preprocess: Preprocess) -> Pixels:
        boxes.append(image.shape)
        return np.zeros((*preprocess.crop, 3), np.uint8)

    monkeypatch.setattr(canvas, "_resize_box", resize_box)
    for size in ((375, 500), (1080, 1920), (37, 2000), (4000, 1)):
        image = noise(*size)
        resize_crop(image, crop_geometry(*size, Preprocess()), Preprocess())
    assert boxes == [(37, 2000, 3), (4000, 1, 3)]


def test_a_squash_of_a_long_image_is_clipped_as_the_reference() -> None:
    preprocess = Preprocess(resize=(800, 300), interpolation="bicubic")
    image = noise(300, 600)
    apart = (on_cpu(image, preprocess) - reference(image, preprocess)).abs().max().item()
    assert apart <= LIMIT["bicubic"], f"{apart} levels"


@pytest.mark.parametrize("side", [224, 544])
def test_orientations_give_the_upright_images_canvas(side: int) -> None:
    upright_image = noise(300, 451)
    # What a camera that was held like this has stored (EXIF 2.3, tag 0x0112).
    stored = {
        1: upright_image,
        2: upright_image[:, ::-1],
        3: upright_image[::-1, ::-1],
        4: upright_image[::-1],
        5: upright_image.swapaxes(0, 1),
        6: np.rot90(upright_image, 1),
        7: upright_image[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(upright_image, -1),
    }
    for interpolation in LIMIT:
        preprocess = Preprocess(interpolation=interpolation)
        expected = np.zeros((side, side, 3), np.uint8)
        geometry = place(upright_image, 1, preprocess, expected)
        for orientation, pixels in stored.items():
            assert np.array_equal(upright(pixels, orientation), upright_image), f"orientation {orientation}"
            slot = np.zeros((side, side, 3), np.uint8)
            assert place(pixels, orientation, preprocess, slot) == geometry, f"orientation {orientation}"
            assert np.array_equal(slot, expected), f"orientation {orientation}"


def some_sizes() -> Iterator[tuple[int, int]]:
    rng = np.random.default_rng(5)
    yield from SIZES
    for _ in range(500):
        height, width = np.exp(rng.uniform(0, np.log(10_000), 2)).astype(int).tolist()
        yield height, width


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_window_never_leaves_the_image(chain: str, interpolation: Interpolation) -> None:
    preprocess = Preprocess(**CHAINS[chain], interpolation=interpolation)
    for size in some_sizes():
        geometry = crop_geometry(*size, preprocess)
        for axis, extent, crop in zip((geometry.y, geometry.x), size, preprocess.crop, strict=True):
            first, last = axis.window(crop, FILTER_SUPPORT[interpolation])
            assert 0 <= first < last <= extent, f"{size}: window {first}..{last} of {extent}"
            cut = axis.cut(first, last)
            assert cut.extent == last - first
            # The first and the last pixel's centres lie in the window.
            assert 0 <= cut.scale * 0.5 + cut.offset <= cut.extent
            assert 0 <= cut.scale * (crop - 0.5) + cut.offset <= cut.extent


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(375, 500), (1000, 301), (50, 90), (1080, 1920)])
def test_the_reference_depends_on_nothing_outside_the_window(
    size: tuple[int, int], interpolation: Interpolation
) -> None:
    preprocess = Preprocess(interpolation=interpolation)
    image, geometry = noise(*size), crop_geometry(*size, preprocess)
    support = FILTER_SUPPORT[interpolation]
    top, bottom = geometry.y.window(preprocess.crop[0], support)
    left, right = geometry.x.window(preprocess.crop[1], support)
    spoilt = 255 - image
    spoilt[top:bottom, left:right] = image[top:bottom, left:right]
    assert (spoilt != image).any()
    assert torch.equal(reference_levels(spoilt, preprocess), reference_levels(image, preprocess))


def test_a_window_that_does_not_fit_is_resized_before() -> None:
    image = noise(1200, 1300)
    small, large = np.zeros((544, 544, 3), np.uint8), np.zeros((1200, 1200, 3), np.uint8)
    assert place(image, 1, Preprocess(), small) == identity_geometry(Preprocess())
    assert place(image, 1, Preprocess(), large) != identity_geometry(Preprocess())
    assert not small[224:].any()
    assert not small[:, 224:].any()


def test_pixels_may_be_read_only() -> None:
    image = noise(256, 256)
    image.flags.writeable = False
    for side in (224, 544):
        place(image, 1, Preprocess(), np.zeros((side, side, 3), np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(1, 1), (1, 50), (50, 1)])
def test_images_of_one_row_or_column_may_be_turned(size: tuple[int, int], orientation: int) -> None:
    stored, side = noise(*size), 224
    turned, expected = (np.zeros((side, side, 3), np.uint8) for _ in range(2))
    place(stored, orientation, Preprocess(), turned)
    place(upright(stored, orientation).copy(), 1, Preprocess(), expected)
    assert np.array_equal(turned, expected)


@pytest.mark.parametrize("side", [224, 544])
def test_the_transform_ends_as_normalize_does(side: int) -> None:
    preprocess = Preprocess()
    slot = np.zeros((side, side, 3), np.uint8)
    inputs = batch_of_one(slot, place(noise(300, 451), 1, preprocess, slot))
    resizes = resizes_in_graph(side, preprocess)
    levels = resize_levels(*inputs, preprocess, torch.float32) if resizes else inputs[0]
    ours = Transform(preprocess, resize=resizes, dtype=torch.float32)(*inputs)
    apart = (ours - normalize(levels, preprocess)).abs().max().item()
    assert apart < 1e-5, f"normalised values are {apart} apart"
    assert ours.is_contiguous(memory_format=torch.channels_last)


CROPS, BATCH = 500, 4


def cut_crops(photographs: dict[str, Pixels]) -> list[Pixels]:
    """Parts of the photographs, from a tenth of them to the whole: enlarged and shrunk on the way to the model."""
    rng, crops = np.random.default_rng(7), []
    for photo, _ in zip(np.resize(np.array(list(photographs)), CROPS), range(CROPS), strict=True):
        pixels = photographs[photo]
        share = rng.uniform(0.1, 1.0)
        height = max(16, int(pixels.shape[0] * share))
        width = max(16, int(pixels.shape[1] * share * rng.uniform(0.6, 1.0)))
        top, left = rng.integers(0, pixels.shape[0] - height + 1), rng.integers(0, pixels.shape[1] - width + 1)
        crops.append(pixels[top : top + height, left : left + width])
    return crops


def test_top_1_is_the_references(
    default_model: Model, photographs: dict[str, Pixels], capsys: pytest.CaptureFixture[str]
) -> None:
    preprocess, graph = default_model.preprocess, Graph(default_model, 544)
    crops, expected, found = cut_crops(photographs), [], []
    with torch.inference_mode():
        for start in range(0, CROPS, BATCH):
            batch = crops[start : start + BATCH]
            slots = np.zeros((BATCH, 544, 544, 3), np.uint8)
            rows = [place(pixels, 1, preprocess, slot).row() for pixels, slot in zip(batch, slots, strict=True)]
            _, indices = graph(torch.from_numpy(slots).permute(0, 3, 1, 2), torch.tensor(rows))
            found.append(indices[:, 0])
            levels = torch.stack([reference_levels(pixels, preprocess) for pixels in batch])
            images = normalize(levels, preprocess).contiguous(memory_format=torch.channels_last)
            expected.append(graph.module(images).argmax(dim=1))
    labels, agree = torch.cat(expected), torch.cat(found) == torch.cat(expected)
    distinct, agreement = len(set(labels.tolist())), agree.float().mean().item()
    with capsys.disabled():
        print(f"\n  top-1 of {CROPS} crops with {distinct} labels: {100 * agreement:.1f}% as the reference", end="")
    assert distinct >= 50, f"only {distinct} labels: the crops prove little"
    assert agreement >= 0.99, f"{CROPS - int(agree.sum())} of {CROPS} top-1 labels differ from the reference"


def test_folding_batch_norm_changes_no_score(default_model: Model, photographs: dict[str, Pixels]) -> None:
    preprocess = default_model.preprocess
    levels = torch.stack([reference_levels(pixels, preprocess) for pixels in photographs.values()])
    with torch.inference_mode():
        expected = default_model.module(normalize(levels, preprocess)).softmax(dim=1).topk(5)
        scores, indices = Graph(default_model, 224)(levels, torch.zeros(len(levels), 6))
    assert torch.equal(indices[:, 0].long(), expected.indices[:, 0])
    apart = (scores[:, :5] - expected.values).abs().max().item()
    assert apart < 1e-4, f"scores are {apart} apart"
