"""What people send that is no image, or an image of a format that is not supported: the refusal must name it."""

import base64

from pipeline.errors import NotAnImage, UnsupportedImage
from pipeline.sniff import SUPPORTED
from tests.images.corpus import Sample
from tests.images.make import encode, photo


def samples() -> list[Sample]:
    return [*_no_images(), *_other_images()]


def _no_images() -> list[Sample]:
    jpeg = encode(photo(16, 16), "JPEG")
    encoded = base64.b64encode(jpeg)
    kinds = [
        ("empty", b"", "empty"),
        ("text", b"hello, this is no image", "plain text"),
        ("utf-8 text", "żółć i gęś".encode() * 200, "plain text"),
        ("html", b"<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page"),
        ("html after a comment", b"\n  <!-- x --><html>", "an HTML page"),
        ("xml", b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "an XML document"),
        ("json", b'{"error": "not found"}', "JSON text"),
        ("base64 text of a jpeg", encoded, "base64 text of a JPEG image"),
        ("base64 text of a png", base64.b64encode(encode(photo(16, 16), "PNG")), "base64 text of a PNG image"),
        ("base64 text in lines", base64.encodebytes(bytes(range(256))), "base64 text"),
        ("data url", b"data:image/jpeg;base64," + encoded, "a data: URL"),
        ("data url of an svg", b"data:image/svg+xml;utf8,<svg xmlns='http://www.w3.org/2000/svg'/>", "a data: URL"),
        ("base64 text in quotes", b'"' + encoded + b'"', "text in quotes"),
        ("python's text of bytes", repr(jpeg).encode(), "text in quotes"),
        ("hexadecimal text", jpeg.hex().encode(), "hexadecimal text of an image"),
        ("jpeg encoded as text", jpeg.decode("latin-1").encode(), "a JPEG image whose bytes were encoded as text"),
        ("jpeg decoded as text", jpeg.decode("utf-8", "replace").encode(), "decoded as text, and so lost"),
        ("png encoded as text", b"\xc2\x89PNG\r\n\x1a\n", "a PNG image whose bytes were encoded as text"),
        ("png decoded as text", b"\xef\xbf\xbdPNG\r\n\x1a\n", "a PNG image whose bytes were decoded as text"),
        ("png of unix line ends", b"\x89PNG\n\x1a\n\0\0\0\rIHDR", "line ends were changed"),
        ("png of dos line ends", b"\x89PNG\r\r\n\x1a\r\n\0\0\0\rIHDR", "line ends were changed"),
        ("multipart form", b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + jpeg, "a multipart form"),
        ("url", b"https://example.org/cat.jpg", "a URL"),
        ("pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "a PDF"),
        ("zip", b"PK\3\4\x14\0\0\0\x08\0", "a ZIP"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
        ("mp4", b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41", "video"),
        ("wav", b"RIFF\x24\0\0\0WAVEfmt ", "a WAV"),
        ("numpy array", b"\x93NUMPY\1\0v\0{'descr'", "a NumPy"),
        ("zeros", bytes(1000), "zero bytes"),
        ("unknown bytes", b"\x80\x81\x82\x83" * 50, "200 bytes of an unknown format that starts with 0x80818283"),
        ("text that starts as a bmp", b"BMW drivers, unite: you have nothing to lose", "plain text"),
    ]
    return [Sample(name, data, "", error=NotAnImage, words=(words, SUPPORTED[-1])) for name, data, words in kinds]


def _other_images() -> list[Sample]:
    kinds = [
        ("heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC"),
        ("jpeg xl", b"\xff\x0a\xfa\x1f", "a JPEG XL"),
        ("jpeg 2000", b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x14", "a JPEG 2000"),
        ("ico", b"\0\0\1\0\1\0\x10\x10", "an ICO"),
        ("psd", b"8BPS\0\1\0\0", "a Photoshop"),
        ("svg", b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG"),
        ("netpbm", b"P6\n2 2\n255\n" + bytes(12), "a Netpbm"),
    ]
    return [Sample(name, data, "", error=UnsupportedImage, words=(words, SUPPORTED[-1])) for name, data, words in kinds]
