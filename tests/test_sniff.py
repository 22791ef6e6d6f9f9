"""`pipeline.sniff`: formats by their bytes, and what a caller is told of everything else."""

import base64
import gzip
import io
import json
import zipfile

import pytest
from PIL import features

from pipeline.errors import NotAnImage, UnsupportedImage
from pipeline.sniff import SUPPORTED, sniff
from tests.images.corpus import Sample, corpus
from tests.images.make import encode, photo

IMAGES = [sample for sample in corpus() if sample.format and sample.error not in (NotAnImage, UnsupportedImage)]
OTHERS = [sample for sample in corpus() if sample.error is NotAnImage]


@pytest.mark.parametrize("sample", IMAGES, ids=str)
def test_formats_are_told_by_their_bytes(sample: Sample) -> None:
    assert sniff(sample.data) == sample.format


@pytest.mark.parametrize("sample", OTHERS, ids=str)
def test_other_bytes_are_named(sample: Sample) -> None:
    with pytest.raises(NotAnImage) as caught:
        sniff(sample.data)
    assert all(word in str(caught.value) for word in sample.words)
    assert all(name in str(caught.value) for name in SUPPORTED)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(b"x"), "gzip"),
        (json.dumps([1, 2]).encode(), "JSON"),
        ("\ufeff<html>".encode(), "HTML"),
        (base64.urlsafe_b64encode(encode(photo(16, 16), "WEBP")), "base64 text of a WEBP image"),
        (base64.b64encode(b"%PDF-1.7 and more, and more, and more, and yet more of it"), "base64 text"),
        (b"antidisestablishmentarianism", "plain text"),
        (b"RIFF\x24\0\0\0AVI LIST", "an AVI video"),
        (b"\xff", "1 bytes of an unknown format that starts with 0xff"),
        (b"BM", "plain text"),
    ],
)
def test_look_alikes(data: bytes, words: str) -> None:
    with pytest.raises(NotAnImage, match=words):
        sniff(data)


def test_zip_made_by_python() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("cat.jpg", encode(photo(16, 16), "JPEG"))
    with pytest.raises(NotAnImage, match="ZIP"):
        sniff(file.getvalue())


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1"])
def test_heic_is_an_image_but_not_supported(brand: bytes) -> None:
    with pytest.raises(UnsupportedImage, match="HEIC"):
        sniff(b"\0\0\0\x14ftyp" + brand + b"\0\0\0\0miaf")


def test_avif_in_a_neutral_container() -> None:
    """mif1 as the major brand, avif among the compatible ones."""
    data = b"\0\0\0\x18ftypmif1\0\0\0\0avifmiaf"
    if features.check("avif"):
        assert sniff(data) == "AVIF"
    else:
        with pytest.raises(UnsupportedImage, match="AVIF"):
            sniff(data)


@pytest.mark.parametrize("length", range(1, 12))
def test_first_bytes_of_a_png_never_pass_for_one(length: int) -> None:
    data = encode(photo(4, 4), "PNG")[:length]
    if length >= 8:
        assert sniff(data) == "PNG"
    else:
        with pytest.raises(NotAnImage):
            sniff(data)
