"""`--exif ignore`: images are classified as they are stored, and the explanation says so."""

import math
from collections.abc import Iterator

import pytest
from PIL import Image

from pipeline.embedded import Pipeline
from pipeline.headers import Limits, read_header
from pipeline.model import Model
from pipeline.options import Options
from pipeline.request import Request
from tests import slow_model
from tests.conftest import PHOTOGRAPHS
from tests.images.corpus import by_name
from tests.images.make import encode, with_orientation
from tests.serving import process
from warmlane.client import Client

OPTIONS = Options(batch_size=1, slots=2, threads=1, decode_threads=1, compile=False)


@pytest.fixture(scope="module")
def pipeline(default_model: Model) -> Iterator[Pipeline]:
    pipeline = Pipeline(default_model, OPTIONS, Limits(ignore_exif=True))
    pipeline.start().result(60)
    yield pipeline
    pipeline.stop()


def scores(pipeline: Pipeline, image: bytes) -> dict[int, float]:
    request = Request(image, "", pipeline.slots.acquire()[0], math.inf)
    pipeline.submit(request)
    result = request.future.result(60)
    return dict(zip(result.indices[:3].tolist(), result.scores[:3].tolist(), strict=True))


def stored_and_marked(orientation: int) -> tuple[bytes, bytes]:
    """A photograph on its side or head, without and with the mark that turns it upright."""
    with Image.open(PHOTOGRAPHS / "cat.jpg") as cat:
        exif = Image.Exif()
        exif[0x0112] = orientation
        small = cat.convert("RGB").resize((300, 240))
        return encode(small, "PNG"), encode(small, "PNG", exif=exif)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_ignored_orientations_change_no_score(pipeline: Pipeline, orientation: int) -> None:
    stored, marked = stored_and_marked(orientation)
    assert scores(pipeline, marked) == pytest.approx(scores(pipeline, stored), abs=1e-5)


def test_applied_ones_do(default_model: Model) -> None:
    """The control of the test above."""
    pipeline = Pipeline(default_model, OPTIONS, Limits())
    pipeline.start().result(60)
    stored, marked = stored_and_marked(6)
    turned, plain = scores(pipeline, marked), scores(pipeline, stored)
    pipeline.stop()
    assert turned != pytest.approx(plain, abs=0.05)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_sizes_are_as_stored(kind: str, orientation: int) -> None:
    data = with_orientation(kind, orientation)
    ignored, applied = (read_header(data, Limits(ignore_exif=ignore)) for ignore in (True, False))
    assert ignored.upright_size == (ignored.width, ignored.height)
    assert applied.upright_size == (96, 64)
    assert ignored.orientation == applied.orientation == orientation


@pytest.mark.parametrize("frontends", ["0", "1"])
def test_the_setting_reaches_whoever_decodes(frontends: str) -> None:
    with (
        process("--exif", "ignore", "--frontends", frontends, *slow_model.FLAGS) as server,
        Client(server.target) as client,
    ):
        for kind in ("jpeg", "png", "webp", "tiff"):
            said = client.classify(by_name(f"{kind} orientation 6").data, explain=True).explanation
            assert said is not None
            assert said.orientation == 6
            assert "EXIF orientation 6 ignored" in said.conversions
