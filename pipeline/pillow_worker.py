"""`python -m pipeline.pillow_worker`: decodes with Pillow for another process, which may kill it at any time.

Started by `pipeline.pillow_process`, which says what goes over the channel. Imports neither torch nor gRPC: it is
ready in a fifth of a second, and stays small.
"""

import ctypes
import json
import mmap
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np

from pipeline.errors import BadImage
from pipeline.parent import die_with
from pipeline.pillow_decode import decode_with_pillow

# mallopt(3), bytes. By default what an image took goes back to the kernel at once and comes again page by page: for a
# WebP of 500x375 that is a third of the time.
_M_TRIM_THRESHOLD, _KEPT_FREE = -1, 64 << 20
_M_MMAP_THRESHOLD, _FROM_HEAP = -3, 32 << 20


def main(argv: list[str]) -> int:
    """Answer until the other side closes the channel."""
    parent, channel_fd, memory_fd, niceness = map(int, argv)
    die_with(parent)
    _keep_memory()
    os.nice(niceness)
    channel = Connection(channel_fd)
    scratch = mmap.mmap(memory_fd, 0)
    channel.send_bytes(b"ready")
    while True:
        try:
            asked = json.loads(channel.recv_bytes())
            data = scratch[: asked["in_memory"]] or channel.recv_bytes()
            memory = _map(recv_handle(channel)) if asked["has_own_memory"] else scratch
        except EOFError:
            return 0
        channel.send_bytes(json.dumps(_answer(data, asked, memory)).encode())
        del data, memory


def _keep_memory() -> None:
    libc = ctypes.CDLL(None)
    # Of glibc only.
    with suppress(AttributeError):
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_FREE)
        libc.mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP)


def _map(fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def _answer(data: bytes, asked: dict[str, Any], memory: mmap.mmap) -> dict[str, Any]:
    """Decodes into the memory; what was done on the way, or what was wrong."""
    width, height = asked["size"]
    try:
        pixels, conversions = decode_with_pillow(data, asked["kind"], (width, height), asked["reduction"])
        np.frombuffer(memory, np.uint8, pixels.size).reshape(pixels.shape)[:] = pixels
    except BadImage as error:
        return {"error": type(error).__name__, "words": str(error)}
    except Exception:
        return {"error": "", "words": traceback.format_exc()}
    return {"conversions": conversions}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
