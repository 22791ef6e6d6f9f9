"""A fake for a server's processes, which import this of their own accord if its folder is on PYTHONPATH: JPEGs of a
certain height take for ever to decode, in a thread that nothing can stop.

Proves what becomes of such a file and of its frontend; that any real JPEG does this is not claimed.
"""

import time
from typing import Any

import simplejpeg

FOR_EVER = 61
_decode = simplejpeg.decode_jpeg


def decode(data: bytes, *how: Any, **options: Any) -> Any:
    if simplejpeg.decode_jpeg_header(data)[0] == FOR_EVER:
        time.sleep(3600)
    return _decode(data, *how, **options)


simplejpeg.decode_jpeg = decode
