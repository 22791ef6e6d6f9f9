"""What is fuzzed: sniffing, header and decode of one file, and what must hold whatever its bytes are."""

import re
import resource
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pipeline.decode import decode
from pipeline.errors import BadImage
from pipeline.headers import Limits, read_header

LIMITS = Limits(max_bytes=1 << 16, max_pixels=1 << 20, max_frames=100)
# A megapixel of three bytes, several copies of it on the way, and what libraries and malloc take for themselves.
ALLOWED_BYTES = 96 << 20

_PAGE_BYTES = resource.getpagesize()
_PNG = b"\x89PNG\r\n\x1a\n"
_MEMORY = re.compile(r"memory|alloc", re.IGNORECASE)


def take(data: bytes) -> None:
    """Raises whatever is a finding: any error but `BadImage`, a wrong picture, an allocation over the limit."""
    with allocations_under(ALLOWED_BYTES):
        _decode(data)
        if data.startswith(_PNG):
            _decode(signed_png(data))


def _decode(data: bytes) -> None:
    try:
        header = read_header(data, LIMITS)
        reduction = 1 << len(data) % 4
        decoded = decode(data, header, reduction=reduction)
    except BadImage as error:
        _check_words(str(error))
        return
    assert decoded.pixels.shape == (-(-header.height // reduction), -(-header.width // reduction), 3)
    assert decoded.pixels.dtype == np.uint8
    for words in decoded.conversions:
        _check_words(words)


def _check_words(words: str) -> None:
    """They go to the caller: one line, and no address."""
    assert words.isprintable(), words
    assert " object at " not in words, words
    assert len(words) < 500, words
    # A library that was refused memory may call the file damaged.
    assert not _MEMORY.search(words), words


@contextmanager
def allocations_under(size: int) -> Iterator[None]:
    """Makes allocations fail that take the process further than `size` bytes over what it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * _PAGE_BYTES + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def signed_png(data: bytes) -> bytes:
    """The PNG with its checksums made right, without which no change to it gets past the first check."""
    parts, at = [_PNG], len(_PNG)
    while at + 12 <= len(data):
        length = min(int.from_bytes(data[at : at + 4], "big"), len(data) - at - 12)
        body = data[at + 4 : at + 8 + length]
        parts.append(struct.pack(">I", length) + body + struct.pack(">I", zlib.crc32(body)))
        at += 12 + length
    return b"".join(parts)
