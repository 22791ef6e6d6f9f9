import io
from pathlib import Path

import pytest
from PIL import Image

from bench.mix import PHOTOGRAPHS, mean_bytes, mix_images


def sizes(name: str) -> list[tuple[int, int]]:
    return [Image.open(io.BytesIO(file)).size for file in mix_images(name)]


def test_small_is_500x375_of_49_kib() -> None:
    assert set(sizes("small")) == {(500, 375)}
    assert mean_bytes(mix_images("small")) == pytest.approx(49 * 1024, rel=0.05)


def test_imagenet_varies_around_500x375_and_110_kb() -> None:
    found = sizes("imagenet")
    pixels = sum(width * height for width, height in found) / len(found)
    assert len(set(found)) > 5
    assert found.count((500, 375)) > len(found) / 3
    assert pixels == pytest.approx(500 * 375, rel=0.25), pixels
    assert mean_bytes(mix_images("imagenet")) == pytest.approx(110e3, rel=0.05)


def test_imagenet_has_grey_files() -> None:
    modes = [Image.open(io.BytesIO(file)).mode for file in mix_images("imagenet")]
    assert modes.count("L") == 2


def test_phone_has_large_files() -> None:
    assert sizes("phone").count((4000, 3000)) == 4


def test_a_mix_is_made_once_and_is_the_same_each_time() -> None:
    first = mix_images("small")
    assert mix_images("small") is first
    mix_images.cache_clear()
    assert mix_images("small") == first


def test_an_unknown_mix_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="small, imagenet, phone"):
        mix_images("huge")


@pytest.mark.parametrize("path", sorted(PHOTOGRAPHS.glob("*.jpg")), ids=lambda path: path.name)
def test_every_photograph_has_its_origin_written_down(path: Path) -> None:
    with Image.open(path) as image:
        size = f"{image.width}x{image.height}"
    assert f"| `{path.name}` | {size}" in (PHOTOGRAPHS / "README.md").read_text()
