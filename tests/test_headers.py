"""`pipeline.headers` and the walks under it: facts of each file, limits before memory, time."""

import struct
import subprocess
import sys
import timeit
from dataclasses import replace

import pytest
from PIL import Image

from pipeline.errors import CorruptImage, ImageTooLarge, UnsupportedImage
from pipeline.headers import Header, Limits, read_header
from pipeline.ifd import read_orientation
from pipeline.jpeg import MAX_SCANS, walk_jpeg
from tests.images.bad_files import bomb_png
from tests.images.corpus import Sample, by_name, corpus, good
from tests.images.make import (
    after_soi,
    encode,
    gif_of_frames,
    jpeg_segment,
    photo,
    scan_starts,
    segment_at,
    thumbnail_exif,
    webp_claiming,
)

LIMITS = Limits()


@pytest.mark.parametrize("sample", good(), ids=str)
def test_facts_of_each_file(sample: Sample) -> None:
    header = read_header(sample.data, LIMITS)
    assert (header.format, header.width, header.height) == (sample.format, *sample.size)
    assert header.orientation == sample.orientation
    assert (header.jpeg is not None) == (sample.format == "JPEG")


@pytest.mark.parametrize("sample", [sample for sample in corpus() if sample.error is ImageTooLarge], ids=str)
def test_what_is_too_large_is_refused_with_its_numbers(sample: Sample) -> None:
    with pytest.raises(ImageTooLarge) as caught:
        read_header(sample.data, LIMITS)
    assert all(word in str(caught.value) for word in sample.words)


def test_each_limit_is_inclusive() -> None:
    data = encode(photo(20, 10), "PNG")
    exact = Limits(max_bytes=len(data), max_pixels=200, max_frames=1)
    assert read_header(data, exact).width == 20
    with pytest.raises(ImageTooLarge, match="--max-image-bytes"):
        read_header(data, replace(exact, max_bytes=len(data) - 1))
    with pytest.raises(ImageTooLarge, match=r"20x10.*--max-image-pixels"):
        read_header(data, replace(exact, max_pixels=199))
    animated = by_name("gif animated").data
    assert read_header(animated, Limits(max_frames=3)).frames == 3
    with pytest.raises(ImageTooLarge, match="--max-image-frames"):
        read_header(animated, Limits(max_frames=2))


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        ("gif animated", 3),
        ("webp animated", 3),
        ("png animated", 3),
        ("tiff of 3 pages", 3),
        ("gif", 1),
        ("png", 1),
        ("tiff big", 1),
    ],
)
def test_frames_are_counted(name: str, frames: int) -> None:
    assert read_header(by_name(name).data, LIMITS).frames == frames


def test_first_gif_frame_may_widen_the_screen() -> None:
    data = bytearray(gif_of_frames(1))
    data[data.index(b",") + 1] = 4
    assert read_header(bytes(data), LIMITS).width == 5


@pytest.mark.parametrize(("orientation", "size"), [(1, (20, 10)), (4, (20, 10)), (5, (10, 20)), (8, (10, 20))])
def test_upright_size(orientation: int, size: tuple[int, int]) -> None:
    assert Header("PNG", 20, 10, orientation).upright_size == size


# What a JPEG's header says.


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("jpeg 4:2:0", {"sampling": ((2, 2), (1, 1), (1, 1)), "colour": "YCbCr", "baseline": True, "jfif": True}),
        ("jpeg 4:4:4", {"sampling": ((1, 1), (1, 1), (1, 1)), "scans": 1, "complete": True}),
        ("jpeg grey", {"components": 1, "colour": "grey", "baseline": True}),
        ("jpeg progressive", {"progressive": True, "baseline": False, "scans": 10, "all_sent": True, "complete": True}),
        ("jpeg arithmetic", {"arithmetic": True, "baseline": False, "progressive": False}),
        ("jpeg lossless grey", {"lossless": True, "baseline": False, "arithmetic": False}),
        ("jpeg 12-bit", {"precision": 12, "baseline": False}),
        ("jpeg hierarchical", {"hierarchical": True, "baseline": False}),
        ("jpeg rgb adobe transform 0", {"adobe_transform": 0, "colour": "RGB", "jfif": False}),
        ("jpeg cmyk adobe", {"adobe_transform": 0, "colour": "CMYK", "components": 4}),
        ("jpeg cmyk without adobe", {"adobe_transform": None, "colour": "CMYK"}),
        ("jpeg ycck", {"adobe_transform": 2, "colour": "YCCK"}),
        ("jpeg of two components", {"components": 2, "colour": "unknown"}),
        ("jpeg icc profile", {"has_profile": True}),
        ("jpeg without its end marker", {"complete": False, "all_sent": True, "trailing_bytes": 0}),
        ("jpeg progressive cut between scans", {"complete": False, "all_sent": False, "scans": 5}),
        ("jpeg rubbish after its end", {"complete": True, "trailing_bytes": 18}),
        ("jpeg extraneous bytes", {"junk_bytes": 3, "complete": True}),
        ("jpeg fill bytes", {"junk_bytes": 0}),
        ("jpeg comment", {"complete": True, "trailing_bytes": 0}),
    ],
)
def test_jpeg_facts(name: str, facts: dict[str, object]) -> None:
    frame = walk_jpeg(by_name(name).data)
    assert {key: getattr(frame, key) for key in facts} == facts


def test_thumbnail_end_marker_does_not_count() -> None:
    whole = after_soi(encode(photo(), "JPEG"), jpeg_segment(0xE1, thumbnail_exif()))
    assert whole.count(b"\xff\xd9") == 2
    assert walk_jpeg(whole).complete
    cut = walk_jpeg(whole[:-500])
    assert b"\xff\xd9" in whole[:-500]
    assert not cut.complete


def slow_end(jpeg: bytes) -> int:
    """Byte by byte: the place after the end marker, -1 for none. The reference for the fast walk."""
    at, in_scan = 2, False
    while at + 1 < len(jpeg):
        code = jpeg[at + 1]
        if jpeg[at] != 0xFF or code in (0, 0xD8, 0xFF) or (in_scan and 0xD0 <= code <= 0xD7):
            at += 1
        elif code == 0xD9:
            return at + 2
        else:
            in_scan = in_scan or code == 0xDA
            at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
    return -1


@pytest.mark.parametrize("sample", [sample for sample in good() if sample.format == "JPEG"], ids=str)
@pytest.mark.parametrize("tail", [b"", b"x", b"\xff", b"\xff\xd9", b"\xff\xd8 another \xff\xd9"])
def test_end_marker_as_a_slow_walk_finds_it(sample: Sample, tail: bytes) -> None:
    data = sample.data + tail
    end = slow_end(data)
    frame = walk_jpeg(data)
    assert (frame.complete, frame.trailing_bytes) == (end >= 0, len(data) - end if end >= 0 else 0)


def test_progressive_scans_must_cover_every_component() -> None:
    """A luma-only prefix of a progressive file would decode, in grey: it must not count as whole."""
    data = encode(photo(), "JPEG", progressive=True)
    starts = scan_starts(data)
    for count, start in enumerate(starts[1:], 1):
        frame = walk_jpeg(data[:start])
        assert (frame.scans, frame.all_sent) == (count, False)
    assert walk_jpeg(data[:-2]).all_sent


def test_missing_component_is_refused_even_with_an_end_marker() -> None:
    """A scan of luma alone: chroma would be taken as zero without a warning."""
    data = encode(photo(), "JPEG", subsampling=0)
    start = scan_starts(data)[0]
    luma_only = data[:start] + jpeg_segment(0xDA, b"\1\1\0\0\x3f\0") + data[start + 14 :]
    with pytest.raises(CorruptImage, match="component is missing"):
        walk_jpeg(luma_only)


def test_scans_and_segments_are_bounded() -> None:
    data = encode(photo(16, 16), "JPEG", progressive=True)
    first, second, *_ = scan_starts(data)
    with pytest.raises(UnsupportedImage, match=str(MAX_SCANS)):
        walk_jpeg(data[:first] + data[first:second] * (MAX_SCANS + 1) + data[second:])
    with pytest.raises(UnsupportedImage, match="segments"):
        walk_jpeg(after_soi(data, jpeg_segment(0xFE, b"") * 10_000))


# EXIF orientation in its spellings.


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "form"), [(3, "HH"), (4, "I")])
def test_orientation_in_both_byte_orders_and_types(order: str, kind: int, form: str) -> None:
    value = struct.pack(order + form, *((8, 0) if form == "HH" else (8,)))
    mark = b"II" if order == "<" else b"MM"
    exif = mark + struct.pack(order + "HIHHHI", 42, 8, 1, 0x0112, kind, 1) + value + bytes(4)
    assert read_orientation(exif, 0) == 8


def test_first_of_two_exif_segments_counts() -> None:
    data = by_name("jpeg orientation 6").data
    second = Image.Exif()
    second[0x0112] = 3
    _, end = segment_at(data, 0xE1)
    doubled = data[:end] + jpeg_segment(0xE1, second.tobytes()) + data[end:]
    assert second.tobytes().startswith(b"Exif")
    assert read_header(doubled, LIMITS).orientation == 6


@pytest.mark.parametrize(
    "exif",
    [b"", b"II", b"II*\0\x08\0\0\0", b"II*\0\x08\0\0\0\xff\xff", b"XX*\0\x08\0\0\0\0\0", b"MM\0*\xff\xff\xff\xff"],
)
def test_broken_exif_is_upright(exif: bytes) -> None:
    assert read_orientation(exif, 0) == 1


# Memory and time.

_PEAK_SCRIPT = """
import sys
from pipeline.decode import decode
from pipeline.errors import BadImage
from pipeline.headers import Limits, read_header
def peak_kib():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
data = sys.stdin.buffer.read()
before = peak_kib()
try:
    decode(data, read_header(data, Limits()))
except BadImage as error:
    print(error, file=sys.stderr)
print((peak_kib() - before) // 1024)
"""


def peak_growth_mib(data: bytes) -> int:
    """How many MiB a fresh process grows by at most while it takes `data`."""
    done = subprocess.run([sys.executable, "-c", _PEAK_SCRIPT], input=data, capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    ("name", "data"),
    [("png of 144 megapixels", bomb_png()), ("webp of 16384x16384", webp_claiming(16384, 16384))],
    ids=["png", "webp"],
)
def test_nothing_is_allocated_before_the_limit_check(name: str, data: bytes) -> None:
    assert len(data) < 20_000
    assert peak_growth_mib(data) < 8


def test_the_measure_of_memory_sees_a_decode() -> None:
    """The control of the test above: 36 megapixels, within the limit, show up in it."""
    assert peak_growth_mib(bomb_png(6000)) > 30


def test_header_time(capsys: pytest.CaptureFixture[str]) -> None:
    """Some 25 us on an idle core; the bound only catches a walk that has become a loop over bytes."""
    samples = {"baseline": {}, "progressive": {"progressive": True}}
    for name, options in samples.items():
        data = encode(photo(700, 500), "JPEG", quality=88, **options)
        best = min(timeit.repeat(lambda data=data: read_header(data, LIMITS), number=20, repeat=10)) / 20  # type: ignore[misc]
        with capsys.disabled():
            print(f"\n  header of a {name} JPEG of {len(data) / 1000:.0f} KB: {best * 1e6:.0f} us", end="")
        assert best < 1e-3
