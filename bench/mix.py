"""Sets of JPEG files to measure with, made in memory from the sample photographs.

    small      64 files of 500x375, mean 49 KiB: what published figures mean
    imagenet   64 files like ImageNet's: most near 500x375, a tail of small and large ones, one in 32 grey, mean 110 KB
    none       one byte that is no image, for a server with --skip-decode: what all the rest costs
    phone      12 files as phones and cameras send them: 4000x3000 (3 MB), 1600x1200 and 1024x768, four of each

Each is a random window of a photograph, mirrored at random, resized, given back the sensor noise that enlarging has
removed, and saved. The same Pillow and NumPy make the same bytes everywhere.
"""

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

PHOTOGRAPHS = Path(__file__).parent / "images"
_SOURCES = ("cat", "coffee", "rocket", "astronaut")
_SEED = 20
MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of file in a mix.

    Attributes:
        size: width and height in pixels.
        count: files of this sort.
        quality: of the JPEG, 1 to 100.
        noise: standard deviation of the sensor noise, in grey levels.
        grey: one component instead of three.
    """

    size: tuple[int, int]
    count: int
    quality: int
    noise: float
    grey: bool = False


MIXES: dict[str, tuple[Kind, ...]] = {
    "none": (),
    "small": (Kind((500, 375), 64, quality=90, noise=3.0),),
    "imagenet": (
        Kind((500, 375), 26, quality=97, noise=4.3),
        Kind((375, 500), 10, quality=97, noise=4.3),
        Kind((500, 333), 10, quality=97, noise=4.3),
        Kind((333, 500), 4, quality=97, noise=4.3),
        Kind((500, 375), 2, quality=97, noise=4.3, grey=True),
        Kind((256, 256), 4, quality=92, noise=3.0),
        Kind((160, 120), 2, quality=92, noise=3.0),
        Kind((640, 480), 3, quality=93, noise=3.5),
        Kind((1024, 768), 2, quality=94, noise=4.0),
        Kind((1600, 1200), 1, quality=94, noise=4.0),
    ),
    "phone": (
        Kind((4000, 3000), 4, quality=93, noise=3.5),
        Kind((1600, 1200), 4, quality=93, noise=3.5),
        Kind((1024, 768), 4, quality=93, noise=3.5),
    ),
}


@functools.cache
def mix_images(name: str) -> tuple[bytes, ...]:
    """The files of a mix, in an order that scatters the sorts; made once a process.

    Args:
        name: a key of MIXES; or a folder, whose files it then is, by name, without those whose names begin with a dot.

    Raises:
        ValueError: there is no such mix.
    """
    if name not in MIXES and Path(name).is_dir():
        return tuple(path.read_bytes() for path in folder_files(Path(name)))
    if name not in MIXES:
        raise ValueError(f"unknown mix {name!r}: one of {', '.join(MIXES)}, or a folder")
    if name == "none":
        return (b"\0",)
    random = np.random.default_rng(_SEED)
    photographs = [Image.open(PHOTOGRAPHS / f"{source}.jpg").convert("RGB") for source in _SOURCES]
    files = [
        _encode(_view(photographs[n % len(photographs)], kind, random), kind)
        for kind in MIXES[name]
        for n in range(kind.count)
    ]
    return tuple(files[index] for index in random.permutation(len(files)))


def folder_files(folder: Path) -> list[Path]:
    """The first thousand files of a folder by name; they are held in memory."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return paths[:MOST_FILES]


def mean_bytes(files: Sequence[bytes]) -> float:
    """Mean size of a file in bytes."""
    return sum(map(len, files)) / len(files)


def _view(photograph: Image.Image, kind: Kind, random: np.random.Generator) -> Image.Image:
    """A window of the photograph with the aspect ratio of `kind`, at its size."""
    width, height = kind.size
    largest = min(photograph.width / width, photograph.height / height)
    scale = largest * random.uniform(0.6, 1.0)
    left = random.uniform(0, photograph.width - scale * width)
    top = random.uniform(0, photograph.height - scale * height)
    box = (left, top, left + scale * width, top + scale * height)
    view = photograph.resize(kind.size, Image.Resampling.BICUBIC, box=box)
    if random.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return _add_noise(view, kind.noise, random)


def _add_noise(image: Image.Image, deviation: float, random: np.random.Generator) -> Image.Image:
    """The same noise on all three channels of a pixel, as most of what a camera leaves behind is brightness."""
    noise = random.standard_normal((image.height, image.width, 1), dtype=np.float32) * deviation
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def _encode(image: Image.Image, kind: Kind) -> bytes:
    file = io.BytesIO()
    (image.convert("L") if kind.grey else image).save(file, "JPEG", quality=kind.quality)
    return file.getvalue()
