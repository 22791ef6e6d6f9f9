"""JPEG decoding by a GPU's own JPEG engines: one call of nvJPEG a batch, straight into rows of device memory.

nvJPEG is what torchvision and DALI decode with. It is called directly because both allocate an output for each image
and take Python's lock back and forth for each; one call a batch leaves the lock to the engine's thread, and writes
the crop's window where a lane copies from (bench/LOG.md, 2026-11-30).
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

# nvjpeg.h: nvjpegBackend_t, nvjpegOutputFormat_t, NVJPEG_FLAGS_*.
_HARDWARE = 3
_RGB_INTERLEAVED = 5
# NVJPEG_FLAGS_UPSAMPLING_WITH_INTERPOLATION: chroma as libjpeg-turbo gives it ("fancy upsampling"), so that photographs
# are as on the CPU, within 1 level; it costs nothing. Without it they differ by up to 57 levels.
_INTERPOLATE_CHROMA = 1 << 5
_IMAGE = np.dtype([("channel", np.uintp, 4), ("pitch", np.uintp, 4)])  # nvjpegImage_t
_STATUS = {
    3: "bad JPEG",
    4: "JPEG not supported",
    5: "allocation failed",
    6: "execution failed",
    7: "architecture mismatch",
    8: "internal error",
    9: "not implemented",
    10: "incomplete bitstream",
}


class NoJpegEngine(Exception):
    """The GPU cannot decode here; the message says why."""


class Job(NamedTuple):
    """One image to decode.

    Attributes:
        data: address of the encoded bytes, in host memory.
        size: bytes of it.
        target: address on the device of a row of uint8 [height, pitch].
        window: left, top, width and height of what is wanted, in pixels.
    """

    data: int
    size: int
    target: int
    window: tuple[int, int, int, int]


class NvJpeg:
    """A decoder for one thread.

    Args:
        most: images of a batch.
        pitch: bytes from one line of a target to the next.
        interpolates_chroma: as the CPU does; False is for comparisons.

    Attributes:
        engines: JPEG engines of the device, times the cores of each.

    Raises:
        NoJpegEngine: there is no nvJPEG, or the device has no JPEG engine.
    """

    def __init__(self, device: torch.device, most: int, pitch: int, *, interpolates_chroma: bool = True) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._library = _load()
        # Calls that only set a value keep Python's lock.
        self._quick = ctypes.PyDLL(self._library._name)
        self._handle, self._state = ctypes.c_void_p(), ctypes.c_void_p()
        flags = _INTERPOLATE_CHROMA if interpolates_chroma else 0
        with torch.cuda.device(device):
            self._call("nvjpegCreateEx", _HARDWARE, None, None, flags, ctypes.byref(self._handle))
            self._call("nvjpegJpegStateCreate", self._handle, ctypes.byref(self._state))
        self.engines = self._count_engines()
        # What a call reads, one element an image.
        self._data = np.zeros(most, np.uintp)
        self._sizes = np.zeros(most, np.uintp)
        self._targets = np.zeros(most, _IMAGE)
        self._targets["pitch"][:, 0] = pitch
        self._params = np.zeros(most, np.uintp)
        for index in range(most):
            self._call("nvjpegDecodeParamsCreate", self._handle, ctypes.c_void_p(self._params[index:].ctypes.data))
        self._arguments = [ctypes.c_void_p(each.ctypes.data) for each in self._arrays()]
        self._windows: list[tuple[int, int, int, int] | None] = [None] * most
        self._prepared_for = 0

    def decode(self, jobs: Sequence[Job]) -> list[bool]:
        """Decode up to `most` images; returns once all pixels lie in their targets. On one thread only.

        Returns:
            For each, whether it was decoded. One that was not leaves the others alone.
        """
        with torch.cuda.device(self._device):
            return self._decode_or_halve(jobs)

    def _decode_or_halve(self, jobs: Sequence[Job]) -> list[bool]:
        """nvJPEG does not tell which image it was: one of 32 is found in ten calls, where one by one takes 32."""
        if self._decode_all(jobs):
            return [True] * len(jobs)
        if len(jobs) == 1:
            return [False]
        half = len(jobs) // 2
        return self._decode_or_halve(jobs[:half]) + self._decode_or_halve(jobs[half:])

    def _decode_all(self, jobs: Sequence[Job]) -> bool:
        count = len(jobs)
        self._data[:count], self._sizes[:count], self._targets["channel"][:count, 0], windows = zip(*jobs, strict=True)
        for index, window in enumerate(windows):
            self._set_window(index, window)
        if count != self._prepared_for:
            self._call("nvjpegDecodeBatchedInitialize", self._handle, self._state, count, 1, _RGB_INTERLEAVED)
            self._prepared_for = count
        status = self._library.nvjpegDecodeBatchedEx(
            self._handle, self._state, *self._arguments, ctypes.c_void_p(self._stream.cuda_stream)
        )
        # The JPEG engines are said not to keep a stream's order: nothing is handed on before this thread has waited.
        self._stream.synchronize()
        return bool(status == 0)

    def _set_window(self, index: int, window: tuple[int, int, int, int]) -> None:
        # Most callers send images of few sizes.
        if self._windows[index] != window:
            self._quick.nvjpegDecodeParamsSetROI(ctypes.c_void_p(int(self._params[index])), *window)
            self._windows[index] = window

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """In the order of nvjpegDecodeBatchedEx."""
        return self._data, self._sizes, self._targets, self._params

    def _count_engines(self) -> int:
        engines, cores = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvjpegGetHardwareDecoderInfo", self._handle, ctypes.byref(engines), ctypes.byref(cores))
        return engines.value * cores.value

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise NoJpegEngine(f"{name}: {_STATUS.get(status, status)}")


def _load() -> ctypes.CDLL:
    """nvJPEG as torch's CUDA version has it: a package of its own, the copy in torchvision, or the system's."""
    major = (torch.version.cuda or "").partition(".")[0]
    if not major:
        raise NoJpegEngine("torch was built without CUDA")
    for path in (*_candidates(major), Path(f"libnvjpeg.so.{major}")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    raise NoJpegEngine(f"libnvjpeg.so.{major} is not installed")


def _candidates(major: str) -> list[Path]:
    found: list[Path] = []
    for package, pattern in (
        ("nvidia", f"*/lib/libnvjpeg.so.{major}"),
        ("torchvision", "../torchvision.libs/libnvjpeg*"),
    ):
        spec = importlib.util.find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            found += sorted(Path(folder).glob(pattern))
    return found
