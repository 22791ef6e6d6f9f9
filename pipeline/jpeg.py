"""A walk over a JPEG file's segments and scans (ITU-T T.81, annex B), without decoding any of it.

    SOI  segments...  SOF  segments...  SOS scan  [segments...  SOS scan]...  EOI  bytes after the end

The end marker that counts is the one that this walk meets: the thumbnail inside an EXIF segment has one of its own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pipeline.errors import CorruptImage, UnsupportedImage
from pipeline.ifd import read_orientation
from pipeline.jpeg_frame import JpegFrame

# Ten scans are usual. Each costs a decoder a pass over the whole image, so a small file with many is an attack.
MAX_SCANS = 500
# An ICC profile may take 255 segments, an extended XMP packet about as many.
MAX_SEGMENTS = 4096

SOS, EOI, DNL = 0xDA, 0xD9, 0xDC
_TABLES = frozenset((0xC4, 0xDB, 0xDD))  # DHT, DQT, DRI
SOF_CODES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Within a scan 0xFF00 is a stuffed byte, and 0xFFD0 to 0xFFD7 are restart markers (T.81, B.1.1.2 and B.1.1.5).
# A second start of image stands alone, as restart markers do (table B.1), and is skipped like them.
MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")

# For each of the 64 coefficients of a component, the lowest bit that was sent of it; 255 for none.
_NONE_SENT = b"\xff" * 64
_ALL_SENT = bytes(64)


@dataclass(slots=True)
class _Walk:
    data: bytes
    at: int = 2
    frame_code: int = 0
    frame: tuple[int, int, int] = (0, 0, 0)
    ids: tuple[int, ...] = ()
    sampling: tuple[tuple[int, int], ...] = ()
    jfif: bool = False
    adobe_transform: int | None = None
    has_profile: bool = False
    orientation: int | None = None
    scans: int = 0
    segments: int = 0
    end: int = -1
    junk_bytes: int = 0
    lowest_bits: dict[int, bytes] = field(default_factory=dict)


def walk_jpeg(data: bytes) -> JpegFrame:
    """Reads everything about a JPEG but its pixels: some 25 us for a baseline file of 110 KB.

    Raises:
        CorruptImage: the headers are damaged or cut, or a component of the image was never sent.
        UnsupportedImage: more than `MAX_SCANS` scans, or the height only after the first scan.
    """
    walk = _Walk(data)
    while walk.end < 0 and _step(walk):
        pass
    if not walk.scans:
        raise CorruptImage("truncated JPEG: it ends before its image data")
    return _frame(walk)


def _step(walk: _Walk) -> bool:
    """Goes past one marker; False where there is no other."""
    data, at = walk.data, walk.at
    match = MARKER.search(data, at)
    if match is None:
        return False
    start = match.end()
    code = data[start - 1]
    if start > at + 2 and not walk.scans:
        walk.junk_bytes += len(data[at : start - 2].translate(None, b"\xff"))
    if code == EOI:
        return _end(walk, start)
    end = start + int.from_bytes(data[start : start + 2], "big")
    if end < start + 2 or end > len(data):
        return _cut_segment(walk)
    walk.at = end
    walk.segments += 1
    if walk.segments > MAX_SEGMENTS + MAX_SCANS:
        raise UnsupportedImage(f"JPEG of more than {MAX_SEGMENTS} segments")
    return code in _TABLES or _segment(walk, code, start + 2, end)


def _end(walk: _Walk, at: int) -> bool:
    if not walk.scans:
        raise CorruptImage("damaged JPEG: it ends before its image data")
    walk.end = at
    return False


def _cut_segment(walk: _Walk) -> bool:
    if not walk.scans:
        raise CorruptImage("truncated JPEG: it ends before its image data")
    return False


def _segment(walk: _Walk, code: int, start: int, end: int) -> bool:
    if code == SOS:
        return _scan(walk, start, end)
    if code in SOF_CODES:
        _start_of_frame(walk, code, start, end)
    elif code in _APPLICATION:
        _APPLICATION[code](walk, start, end)
    elif code == DNL and not walk.frame[1]:
        raise UnsupportedImage("JPEG that gives its height after its image data (DNL) is not supported")
    return True


def _start_of_frame(walk: _Walk, code: int, start: int, end: int) -> None:
    """T.81, B.2.2."""
    data = walk.data
    if walk.frame_code:
        raise CorruptImage("damaged JPEG: it has two frame headers")
    if end - start < 6 or end - start < 6 + 3 * data[start + 5]:
        raise CorruptImage("damaged JPEG: its frame header is cut")
    walk.frame_code = code
    walk.frame = (
        data[start],
        int.from_bytes(data[start + 1 : start + 3], "big"),
        int.from_bytes(data[start + 3 : start + 5], "big"),
    )
    stop = start + 6 + 3 * data[start + 5]
    walk.ids = tuple(data[start + 6 : stop : 3])
    walk.sampling = tuple((factors >> 4, factors & 15) for factors in data[start + 7 : stop : 3])


def _app0(walk: _Walk, start: int, end: int) -> None:
    walk.jfif = walk.jfif or walk.data.startswith(b"JFIF\0", start, end)


def _app1(walk: _Walk, start: int, end: int) -> None:
    if walk.orientation is None and walk.data.startswith(b"Exif\0\0", start, end):
        walk.orientation = read_orientation(walk.data[start + 6 : end], 0)


def _app2(walk: _Walk, start: int, end: int) -> None:
    walk.has_profile = walk.has_profile or walk.data.startswith(b"ICC_PROFILE\0", start, end)


def _app14(walk: _Walk, start: int, end: int) -> None:
    if walk.data.startswith(b"Adobe", start, end) and end - start >= 12:
        walk.adobe_transform = walk.data[start + 11]


_APPLICATION: dict[int, Callable[[_Walk, int, int], None]] = {0xE0: _app0, 0xE1: _app1, 0xE2: _app2, 0xEE: _app14}


def _scan(walk: _Walk, start: int, end: int) -> bool:
    """T.81, B.2.3: component count, (id, tables) each, first and last coefficient, high and low bit."""
    count = walk.data[start] if end > start else 0
    if not walk.frame_code or not count or end - start < 4 + 2 * count:
        raise CorruptImage("damaged JPEG: a scan without its frame or its header")
    walk.scans += 1
    if walk.scans > MAX_SCANS:
        raise UnsupportedImage(f"JPEG of more than {MAX_SCANS} scans")
    if count == len(walk.ids) and not _is_progressive(walk.frame_code):
        walk.end = _find_end(walk.data, end)
        walk.lowest_bits = dict.fromkeys(walk.ids, _ALL_SENT)
        return False
    _note_sent(walk, walk.data[start + 1 : start + 1 + 2 * count : 2], start + 1 + 2 * count)
    return True


def _note_sent(walk: _Walk, components: bytes, at: int) -> None:
    first, last, low = walk.data[at], walk.data[at + 1], walk.data[at + 2] & 15
    if not _is_progressive(walk.frame_code):
        first, last, low = 0, 63, 0
    if not first <= last < 64:
        raise CorruptImage("damaged JPEG: a scan of coefficients that do not exist")
    for component in components:
        before = walk.lowest_bits.get(component, _NONE_SENT)
        walk.lowest_bits[component] = before[:first] + bytes([low]) * (last + 1 - first) + before[last + 1 :]


def _is_progressive(code: int) -> bool:
    return code & 3 == 2


def _find_end(data: bytes, start: int) -> int:
    """The place after the first end marker; -1 for none.

    Entropy-coded bytes hold no 0xFFD9 (T.81, B.1.1.5). Compared as 16-bit words at both parities, as bytes.find takes
    ten times as long on a needle of two bytes.
    """
    ends = [at for shift in (0, 1) if (at := _find_word(data, start + shift)) >= 0]
    return min(ends, default=-1)


def _find_word(data: bytes, start: int) -> int:
    count = (len(data) - start) // 2
    if count < 1:
        return -1
    found = np.frombuffer(data, "<u2", count, start) == 0xD9FF
    first = int(found.argmax())
    return start + 2 * first + 2 if found[first] else -1


def _frame(walk: _Walk) -> JpegFrame:
    precision, height, width = walk.frame
    code = walk.frame_code
    # The lowest bit sent of the first coefficient, 255 for none, comes first.
    sent = {walk.lowest_bits.get(component, _NONE_SENT) for component in walk.ids}
    if max(sent, default=_ALL_SENT) >= b"\xff":
        raise CorruptImage("truncated JPEG: a colour component is missing")
    return JpegFrame(
        width=width,
        height=height,
        precision=precision,
        component_ids=walk.ids,
        sampling=walk.sampling,
        progressive=_is_progressive(code),
        arithmetic=code >= 0xC8,
        lossless=code & 3 == 3,
        hierarchical=code & 7 >= 5,
        jfif=walk.jfif,
        adobe_transform=walk.adobe_transform,
        has_profile=walk.has_profile,
        orientation=walk.orientation or 1,
        scans=walk.scans,
        complete=walk.end >= 0,
        all_sent=sent <= {_ALL_SENT},
        trailing_bytes=len(walk.data) - walk.end if walk.end >= 0 else 0,
        junk_bytes=walk.junk_bytes,
    )
