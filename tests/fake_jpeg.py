"""A GPU's JPEG decoder whose device is host memory: libjpeg-turbo writes the windows where nvJPEG would.

It shows what is done around a decoder. Whether a real one's pixels are right and ready is for tests/gpu.
"""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import simplejpeg
import torch

from pipeline.gpu_open import GpuDecode
from pipeline.gpu_rows import GpuRows
from pipeline.nvjpeg import Job

# A comment in a file that this decoder refuses, as real ones may refuse what their engines do not take.
REFUSED = b"\xff\xfe\x00\x0bno engine"


@dataclass
class FakeJpeg:
    """See above.

    Attributes:
        batches: sizes of the batches that were decoded.
        may_decode: nothing is decoded before this is set.
        fault: raised by the next call.
    """

    canvas: int
    batches: list[int] = field(default_factory=list)
    may_decode: threading.Event = field(default_factory=threading.Event)
    fault: Exception | None = None
    shift: int = 0

    def __post_init__(self) -> None:
        self.may_decode.set()

    def decode(self, jobs: Sequence[Job]) -> list[bool]:
        self.may_decode.wait()
        self.batches.append(len(jobs))
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return [self._decode(job) for job in jobs]

    def _decode(self, job: Job) -> bool:
        file = ctypes.string_at(job.data, job.size)
        if REFUSED in file:
            return False
        left, top, width, height = job.window
        pixels = simplejpeg.decode_jpeg(file, "RGB")[top : top + height, left : left + width]
        line = 3 * self.canvas
        target = memoryview((ctypes.c_uint8 * (line * height)).from_address(job.target))
        rows = np.frombuffer(target, np.uint8).reshape(height, line)
        rows[:, : 3 * width] = pixels.reshape(height, -1) + np.uint8(self.shift)
        return True

    def opened(self, rows: int = 8, most: int = 4) -> GpuDecode:
        """What an engine gets."""
        return GpuDecode(self, GpuRows(rows, self.canvas, torch.device("cpu")), most, "fake")
