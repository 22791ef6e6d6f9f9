"""A fake for a server's processes, which import this of their own accord if its folder is on PYTHONPATH: JPEGs of the
height that the environment names take for ever to decode, in a thread that nothing can stop.

Proves what becomes of such a file and of its frontend; that any real JPEG does this is not claimed.
"""

import os
import time
from typing import Any

import simplejpeg

_HEIGHT = int(os.environ["SLOW_JPEG_HEIGHT"])
_decode = simplejpeg.decode_jpeg


def decode(data: bytes, *how: Any, **options: Any) -> Any:
    if simplejpeg.decode_jpeg_header(data)[0] == _HEIGHT:
        time.sleep(3600)
    return _decode(data, *how, **options)


simplejpeg.decode_jpeg = decode
