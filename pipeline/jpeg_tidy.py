"""A JPEG's header written anew, for files that are odd before their first scan but whose pixels are all there."""

from pipeline.jpeg import MARKER, SOF_CODES, SOS
from pipeline.jpeg_frame import JpegFrame

# Tables that decoding needs: DHT, DAC, DQT and DRI (ITU-T T.81, table B.1).
_TABLES = frozenset((0xC4, 0xCC, 0xDB, 0xDD))
_JFIF = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
_ADOBE = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"


def tidy_header(data: bytes, frame: JpegFrame) -> bytes:
    """`data` without the bytes between its first segments, and with application segments that libjpeg knows.

    So a decoder that stops at its first warning has none left to give before the image data.
    """
    parts = [b"\xff\xd8", _JFIF if frame.jfif else b"", _adobe(frame)]
    at = 2
    while match := MARKER.search(data, at):
        code, start = data[match.end() - 1], match.end()
        if code == SOS:
            parts.append(data[start - 2 :])
            break
        at = start + int.from_bytes(data[start : start + 2], "big")
        if code in _TABLES or code in SOF_CODES:
            parts.append(data[start - 2 : at])
    return b"".join(parts)


def _adobe(frame: JpegFrame) -> bytes:
    """An unknown transform means YCbCr or YCCK (libjpeg, `default_decompress_parms`)."""
    if frame.adobe_transform is None:
        return b""
    known = {"YCbCr": 1, "YCCK": 2}.get(frame.colour, 0)
    return _ADOBE + bytes([known])
