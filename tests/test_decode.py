"""`pipeline.decode`: pixels against references, refusals, and what happens to damaged files.

The references are Pillow by itself, and the arrays that the files were made from.
"""

import io
import threading
import timeit

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from PIL import Image

from pipeline import decode as decode_module
from pipeline.decode import Decoded, decode
from pipeline.errors import BadImage, CorruptImage, ImageTooLarge
from pipeline.headers import Limits, read_header
from tests.images.corpus import Sample, bad, by_name, good
from tests.images.make import encode, patched, photo, photo_array, segment_at

LIMITS = Limits()

# How each EXIF orientation is shown, as numpy operations (EXIF 2.32, 4.6.4).
UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


def take(data: bytes) -> Decoded:
    return decode(data, read_header(data, LIMITS), reuse=False)


def pillow_pixels(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def difference(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> int:
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("sample", good(), ids=str)
def test_shape_notes_and_picture(sample: Sample) -> None:
    decoded = take(sample.data)
    width, height = sample.size
    assert decoded.decoder == sample.decoded_by
    assert decoded.pixels.shape == (height, width, 3)
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.c_contiguous
    assert decoded.pixels.flags.writeable
    joined = "; ".join(decoded.conversions)
    assert all(note in joined for note in sample.notes), joined
    assert len(set(decoded.conversions)) == len(decoded.conversions)
    if sample.upright is not None:
        shown = UPRIGHT[sample.orientation](decoded.pixels)
        assert shown.shape == sample.upright.shape
        off = np.abs(shown.astype(int) - sample.upright)
        measure = off.mean() if sample.lossy else off.max()
        assert measure <= sample.tolerance, f"{measure} grey levels off"


@pytest.mark.parametrize("sample", [s for s in good() if not s.notes and s.format != "TIFF"], ids=str)
def test_plain_files_say_nothing(sample: Sample) -> None:
    assert take(sample.data).conversions in ([], ["palette expanded"])


@pytest.mark.parametrize("sample", bad(), ids=str)
def test_refusals(sample: Sample) -> None:
    assert sample.error is not None
    with pytest.raises(BadImage) as caught:
        take(sample.data)
    assert type(caught.value) is sample.error
    message = str(caught.value)
    assert all(word in message for word in sample.words), message
    assert "\n" not in message
    assert " object at " not in message


# Pixels equal Pillow's.

# Pillow by itself cannot read these: bytes that it does not skip, or no end.
NOT_FOR_PILLOW = {
    "jpeg progressive without its end marker",
    "jpeg extraneous bytes, no end marker",
    "jpeg without its end marker",
    "jpeg without its last byte",
    "jpeg grey without its end marker",
}


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("sample", [s for s in good() if s.format == "JPEG" and s.name not in NOT_FOR_PILLOW], ids=str)
def test_jpeg_pixels_equal_pillows(sample: Sample) -> None:
    assert difference(take(sample.data).pixels, pillow_pixels(sample.data)) == 0


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (15, 16), (17, 31), (64, 1), (1, 64), (250, 199)])
@pytest.mark.parametrize("quality", [20, 95])
def test_jpeg_parity_over_sizes(subsampling: int, progressive: bool, size: tuple[int, int], quality: int) -> None:
    data = encode(photo(*size), "JPEG", subsampling=subsampling, progressive=progressive, quality=quality)
    decoded = take(data)
    assert decoded.decoder == "libjpeg-turbo"
    assert difference(decoded.pixels, pillow_pixels(data)) == 0


def test_tidying_keeps_the_colour_space() -> None:
    """Components named R, G, B are YCbCr all the same in a JFIF file; the junk makes its header be written anew."""
    data = encode(photo(), "JPEG", subsampling=0)
    for index, name in enumerate(b"RGB"):
        data = patched(data, segment_at(data, 0xC0)[0] + 10 + 3 * index, bytes([name]))
        data = patched(data, segment_at(data, 0xDA)[0] + 5 + 2 * index, bytes([name]))
    after_jfif = segment_at(data, 0xE0)[1]
    junk = data[:after_jfif] + b"junk" + data[after_jfif:]
    assert take(junk).conversions == ["4 extraneous bytes before marker 0xdb"]
    assert difference(take(junk).pixels, pillow_pixels(data)) == 0


@pytest.mark.parametrize("name", ["jpeg", "jpeg progressive", "jpeg grey"])
def test_missing_end_marker_changes_no_pixel(name: str) -> None:
    without = by_name(f"{name} without its end marker").data
    assert difference(take(without).pixels, pillow_pixels(without + b"\xff\xd9")) == 0


@pytest.mark.parametrize(
    "name",
    ["png", "png grey", "png 1-bit", "png palette", "webp lossy", "gif", "bmp palette", "bmp 1-bit", "tiff palette"],
)
def test_other_pixels_equal_pillows(name: str) -> None:
    data = by_name(name).data
    assert difference(take(data).pixels, pillow_pixels(data)) == 0


@pytest.mark.parametrize(("photometric", "shown"), [(0, 255 - 0x12), (1, 0x12)])
def test_sixteen_bit_tiff_of_both_polarities(photometric: int, shown: int) -> None:
    data = bytearray(encode(Image.fromarray(np.full((4, 4), 0x1234, np.uint16)), "TIFF"))
    at = data.index(b"\x06\x01\x03\0")
    data[at + 8] = photometric
    assert set(take(bytes(data)).pixels.ravel().tolist()) == {shown}


# The scratch buffer.


def test_pixels_hold_until_the_same_thread_decodes_again() -> None:
    data, other = by_name("jpeg 4:4:4").data, by_name("jpeg 4:2:0").data
    header = read_header(data, LIMITS)
    first = decode(data, header)
    kept = first.pixels.copy()
    elsewhere: list[Decoded] = []
    thread = threading.Thread(target=lambda: elsewhere.append(decode(other, read_header(other, LIMITS))))
    thread.start()
    thread.join()
    assert not np.shares_memory(first.pixels, elsewhere[0].pixels)
    assert difference(first.pixels, kept) == 0
    second = decode(other, read_header(other, LIMITS))
    assert np.shares_memory(first.pixels, second.pixels)
    own = decode(data, header, reuse=False)
    assert not np.shares_memory(own.pixels, second.pixels)


def test_large_images_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "SCRATCH_BYTES", 3 * 160 * 120 - 1)
    data = by_name("jpeg 4:4:4").data
    first, second = (decode(data, read_header(data, LIMITS)) for _ in range(2))
    assert not np.shares_memory(first.pixels, second.pixels)


# What is whose fault.


def test_programmer_errors_are_not_taken_for_bad_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fails)
    with pytest.raises(MemoryError):
        take(by_name("jpeg 4:4:4").data)
    monkeypatch.setattr(Image.Image, "convert", fails)
    with pytest.raises(MemoryError):
        take(by_name("png grey").data)


def test_reasons_hold_no_paths_and_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(file: object, name: str) -> None:
        raise OSError(f"cannot read {file!r} of /srv/secret")

    monkeypatch.setitem(Image.OPEN, "PNG", (fails, None))
    with pytest.raises(CorruptImage) as caught:
        take(by_name("png").data)
    assert str(caught.value) == "damaged PNG: OSError"


def test_a_header_of_other_bytes_is_refused() -> None:
    header = read_header(by_name("png").data, LIMITS)
    with pytest.raises(CorruptImage, match="two sizes"):
        decode(by_name("png 1x1").data, header)


def test_limits_hold_for_what_is_decoded() -> None:
    with pytest.raises(ImageTooLarge):
        read_header(by_name("jpeg 500x375").data, Limits(max_pixels=500 * 375 - 1))


def test_decode_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Header, checks and scratch buffer cost little beside the decoder itself."""
    data = encode(Image.fromarray(photo_array(500, 375)), "JPEG", quality=82)
    ours = min(timeit.repeat(lambda: decode(data, read_header(data, LIMITS)), number=5, repeat=10)) / 5
    bare = min(timeit.repeat(lambda: simplejpeg.decode_jpeg(data, "RGB"), number=5, repeat=10)) / 5
    with capsys.disabled():
        print(f"\n  500x375, {len(data) / 1000:.0f} KB: {ours * 1e6:.0f} us, bare decoder {bare * 1e6:.0f} us", end="")
    assert ours < 2 * bare + 200e-6
