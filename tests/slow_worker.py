"""A fake of `pipeline.pillow_worker`: some pictures take for ever, or crash their decoder.

Proves what becomes of such files; that any real file does this is not claimed.
"""

import os
import signal
import sys
import time
from typing import Any

from pipeline import pillow_worker

# The width of a picture says what happens to it.
FOR_EVER, CRASHES, RAISES, KILLED = 61, 62, 63, 64
worker: Any = pillow_worker
_decode = worker.decode_with_pillow


def decode(data: bytes, kind: str, size: tuple[int, int], reduction: int) -> Any:
    if size[0] == FOR_EVER:
        time.sleep(3600)
    if size[0] == CRASHES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if size[0] == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if size[0] == RAISES:
        raise ZeroDivisionError("a bug")
    return _decode(data, kind, size, reduction)


if __name__ == "__main__":
    worker.decode_with_pillow = decode
    sys.exit(worker.main(sys.argv[1:]))
