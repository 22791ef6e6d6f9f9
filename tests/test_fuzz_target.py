"""What `make fuzz` runs a file through: it takes every known file, and notices what it must."""

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from tests.fuzz.target import ALLOWED_BYTES, LIMITS, allocations_under, signed_png, take
from tests.images.corpus import Sample, by_name, corpus
from tests.images.make import patched

# Pillow warns of metadata that damaged TIFF files lack; the module's own filter is reset by pytest's.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")


@pytest.mark.parametrize("sample", [s for s in corpus() if len(s.data) <= LIMITS.max_bytes], ids=str)
def test_no_known_file_is_a_finding(sample: Sample) -> None:
    take(sample.data)


def test_large_allocations_fail() -> None:
    with allocations_under(ALLOWED_BYTES):
        np.empty(ALLOWED_BYTES // 2, np.uint8)
        with pytest.raises(MemoryError):
            np.empty(2 * ALLOWED_BYTES, np.uint8)
    np.empty(2 * ALLOWED_BYTES, np.uint8)


def test_errors_that_are_not_of_the_image_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise AttributeError

    monkeypatch.setitem(Image.OPEN, "PNG", (fails, None))
    with pytest.raises(AttributeError):
        take(by_name("png").data)


def test_libraries_that_ran_out_of_memory_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("Insufficient memory (case 4)")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fails)
    with pytest.raises(AssertionError, match="Insufficient memory"):
        take(by_name("jpeg 4:4:4").data)


def test_checksums_are_made_right() -> None:
    png = by_name("png").data
    assert signed_png(png) == png
    assert signed_png(patched(png, len(png) - 14, b"\0\0")) == png
