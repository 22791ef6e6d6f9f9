"""What the bytes are, by their first few: never by a name or a declared type."""

import base64
import binascii
import re

from PIL import features

from pipeline.errors import NotAnImage, UnsupportedImage

SUPPORTED = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF") + (("AVIF",) if features.check("avif") else ())

# The sizes of the information header that BMP files have (Microsoft's BITMAPCOREHEADER to BITMAPV5HEADER, OS/2's 64).
BMP_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)

_PREFIXES = (
    (b"\xff\xd8", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"II+\0", "TIFF"),
    (b"MM\0+", "TIFF"),
)

_OTHER_IMAGES = (
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "a JPEG XL image"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "a JPEG 2000 image"),
    (b"\xff\x4f\xff\x51", "a JPEG 2000 image"),
    (b"\0\0\1\0", "an ICO icon"),
    (b"\0\0\2\0", "a CUR cursor"),
    (b"8BPS", "a Photoshop PSD file"),
    (b"icns", "an ICNS icon"),
    (b"DDS ", "a DDS texture"),
    (b"qoif", "a QOI image"),
    (b"\x76\x2f\x31\x01", "an OpenEXR image"),
    (b"#?RADIANCE", "a Radiance HDR image"),
    (b"FUJIFILMCCD-RAW", "a camera RAW file"),
    (b"AT&TFORM", "a DjVu document"),
)

_NOT_IMAGES = (
    (b"%PDF-", "a PDF document"),
    (b"%!PS", "a PostScript document"),
    (b"PK\3\4", "a ZIP archive (or an office document)"),
    (b"PK\5\6", "an empty ZIP archive"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ\0", "xz-compressed data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard-compressed data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"\x1aE\xdf\xa3", "a Matroska or WebM video"),
    (b"OggS", "an Ogg audio or video file"),
    (b"ID3", "an MP3 audio file"),
    (b"fLaC", "a FLAC audio file"),
    (b"\x93NUMPY", "a NumPy array file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x7fELF", "an ELF program"),
    (b"MZ", "a Windows program"),
    (b"\xc3\xbf\xc3\x98", "a JPEG image whose bytes were encoded as text (read and send it in binary)"),
    (b"\xc2\x89PNG", "a PNG image whose bytes were encoded as text (read and send it in binary)"),
    (3 * b"\xef\xbf\xbd", "bytes that were decoded as text, and so lost (read and send the file in binary)"),
    (b"\xef\xbf\xbdPNG", "a PNG image whose bytes were decoded as text, and so lost (read and send it in binary)"),
    (b"\x89PNG\n\x1a", "a PNG image whose line ends were changed (transfer it in binary)"),
    (b"\x89PNG\r\r\n", "a PNG image whose line ends were changed (transfer it in binary)"),
)

_HEIC_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}

_HTML = re.compile(rb"<(!doctype html|html|head|body|title|script|div)\b", re.IGNORECASE)
_SVG = re.compile(rb"<svg\b", re.IGNORECASE)
_NETPBM = re.compile(rb"P[1-7][\s#]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{16,}={0,2}\s*")
_BYTES_IN_QUOTES = re.compile(rb"""b?["'](\\x|[A-Za-z0-9+/_-]{16})""")
_HEXADECIMAL = re.compile(rb"(0x)?(ffd8ff|89504e47|47494638|52494646|424d|49492a00|4d4d002a)[0-9a-f]{8}", re.IGNORECASE)
_URL = re.compile(rb"(https?|ftp|s3|gs|file)://", re.IGNORECASE)


def sniff(data: bytes) -> str:
    """The format of `data` by its magic bytes: one of `SUPPORTED`.

    Raises:
        NotAnImage: empty, text, a document, an archive; the message says what the bytes look like.
        UnsupportedImage: an image of a format that is not decoded here.
    """
    found = _supported(data)
    if found:
        return found
    if not data:
        raise NotAnImage(f"the image is empty (0 bytes); supported are {_supported_list()}")
    other = _other_image(data)
    if other:
        raise UnsupportedImage(
            f"the bytes look like {other}, which is not supported; supported are {_supported_list()}"
        )
    raise NotAnImage(f"the bytes look like {_not_image(data)}, not an image; supported are {_supported_list()}")


def _supported(data: bytes) -> str | None:
    for prefix, name in _PREFIXES:
        if data.startswith(prefix):
            return name
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in BMP_HEADER_SIZES:
        return "BMP"
    return "AVIF" if "AVIF" in SUPPORTED and _brands(data) & _AVIF_BRANDS else None


def _other_image(data: bytes) -> str | None:
    for prefix, name in _OTHER_IMAGES:
        if data.startswith(prefix):
            return name
    brands = _brands(data)
    if brands & _AVIF_BRANDS:
        return "an AVIF image"
    if brands & _HEIC_BRANDS:
        return "a HEIC image"
    if b"crx " in brands:
        return "a camera RAW file"
    if _is_text(data) and data[:5].lower() != b"data:" and _SVG.search(data, 0, 1024):
        return "an SVG drawing"
    return "a Netpbm image" if _NETPBM.match(data) else None


def _not_image(data: bytes) -> str:
    for prefix, name in _NOT_IMAGES:
        if data.startswith(prefix):
            return name
    if _brands(data):
        return "an MP4 or QuickTime video"
    if data.startswith(b"RIFF"):
        return {b"AVI ": "an AVI video", b"WAVE": "a WAV audio file"}.get(data[8:12], "an unknown RIFF file")
    if data.startswith(b"--") and b"content-disposition" in data[:1024].lower():
        return "a multipart form (send the bytes of the file alone)"
    if not data[:512].strip(b"\0") and not data.strip(b"\0"):
        return "zero bytes only"
    if _is_text(data):
        return _kind_of_text(data[:8192].lstrip(b"\xef\xbb\xbf \t\r\n"))
    return f"{len(data)} bytes of an unknown format that starts with 0x{data[:8].hex()}"


def _brands(data: bytes) -> set[bytes]:
    """The major and compatible brands of an ISO base media file (ISO/IEC 14496-12, 4.3); empty for other bytes."""
    if data[4:8] != b"ftyp":
        return set()
    end = min(int.from_bytes(data[:4], "big"), 256)
    return {data[8:12]} | {data[at : at + 4] for at in range(16, end - 3, 4)}


def _is_text(data: bytes) -> bool:
    head = data[:512]
    try:
        # A character of several bytes may be cut at the end of the head.
        text = head.decode("utf-8", "strict" if len(data) <= 512 else "ignore")
    except UnicodeDecodeError:
        return False
    whole = len(text.encode()) >= len(head) - 3
    return whole and all(char.isprintable() or char in "\t\r\n\f\ufeff" for char in text)


def _kind_of_text(text: bytes) -> str:
    if text[:5].lower() == b"data:":
        return "a data: URL (send the bytes that it encodes)"
    if _HTML.search(text, 0, 1024):
        return "an HTML page"
    if text.startswith(b"<"):
        return "an XML document"
    if text.startswith((b"{", b"[")):
        return "JSON text"
    if _URL.match(text):
        return "a URL (send the bytes that it names)"
    if _HEXADECIMAL.match(text):
        return "hexadecimal text of an image (send the bytes themselves)"
    if _BYTES_IN_QUOTES.match(text):
        return "text in quotes (send the bytes that it stands for)"
    inside = _inside_base64(text)
    if inside:
        return f"base64 text of {inside} (send the decoded bytes)"
    return "base64 text (send the decoded bytes)" if _is_long_base64(text) else "plain text"


def _inside_base64(text: bytes) -> str | None:
    match = _BASE64.match(text)
    if not match:
        return None
    head = match.group()[:64].rstrip(b"=\r\n\t ")
    try:
        decoded = base64.b64decode(head[: len(head) // 4 * 4], altchars=b"-_" if b"-" in head or b"_" in head else None)
    except binascii.Error:
        return None
    found = _supported(decoded)
    return f"a {found} image" if found else _other_image(decoded)


def _is_long_base64(text: bytes) -> bool:
    head = text[:4096].translate(None, b"\r\n")
    # Words are told from base64 by its mix of cases and digits.
    mixed = all(re.search(part, head) for part in (rb"[A-Z]", rb"[a-z]", rb"[0-9+/]"))
    return len(head) >= 64 and mixed and bool(re.fullmatch(rb"[A-Za-z0-9+/]+={0,2}\s*", head))


def _supported_list() -> str:
    return f"{', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}"
