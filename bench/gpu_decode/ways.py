"""Ways to have a GPU decode a batch of JPEG files, each as quick as its documentation makes it."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

from pipeline.gpu_rows import GpuRows
from pipeline.nvjpeg import Job, NvJpeg

# Batches are taken out of the mix at other places each time, as a cache could otherwise know them.
_STRIDE = 7


@dataclass(frozen=True, slots=True)
class Way:
    """One way of decoding.

    Attributes:
        make: for a batch size, a function that decodes the batch of a turn and returns when it is done.
        gives: what it leaves on the device.
    """

    name: str
    version: str
    gives: str
    make: Callable[[int], Callable[[int], object]]


def all_ways(
    files: Sequence[bytes], canvas: int, window: tuple[int, int, int, int]
) -> tuple[list[Way], dict[str, str]]:
    """All that can be measured here, and why the others cannot."""
    device = torch.device("cuda", torch.cuda.current_device())
    arrays = [np.frombuffer(file, np.uint8) for file in files]
    found = [
        Way("warmlane", "", "windows in rows of slots", lambda size: _nvjpeg(arrays, canvas, window, size, device)),
        Way(
            "torchvision",
            metadata.version("torchvision"),
            "images",
            lambda size: _torchvision(arrays, size, str(device)),
        ),
    ]
    missing = {}
    for name, module, find in (("DALI", "nvidia.dali", _dali), ("nvImageCodec", "nvidia.nvimgcodec", _nvimgcodec)):
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing[name] = str(error)
        else:
            found.append(find(arrays, canvas, window))
    return found, missing


def _batch(items: Sequence[Any], turn: int, size: int) -> list[Any]:
    return [items[(turn * _STRIDE + index) % len(items)] for index in range(size)]


def _nvjpeg(
    arrays: Sequence[Any], canvas: int, window: tuple[int, int, int, int], size: int, device: torch.device
) -> Callable[[int], object]:
    decoder, rows = NvJpeg(device, size, 3 * canvas), GpuRows(size, canvas, device).take(size)

    def run(turn: int) -> None:
        batch = zip(_batch(arrays, turn, size), rows, strict=True)
        jobs = [Job(array.ctypes.data, array.size, row.address, window) for array, row in batch]
        assert all(decoder.decode(jobs))

    return run


def _torchvision(arrays: Sequence[Any], size: int, device: str) -> Callable[[int], object]:
    files = [torch.from_numpy(array.copy()) for array in arrays]

    def run(turn: int) -> None:
        decode_jpeg(_batch(files, turn, size), ImageReadMode.RGB, device=device)
        torch.cuda.synchronize()

    return run


def _dali(arrays: Sequence[Any], canvas: int, window: tuple[int, int, int, int]) -> Way:
    dali: Any = importlib.import_module("nvidia.dali")
    anchor = np.array([window[1], window[0]], np.int32)

    @dali.pipeline_def  # type: ignore[untyped-decorator]
    def definition() -> Any:
        fn, types = dali.fn, dali.types
        files = fn.external_source(name="files", ndim=1, dtype=types.UINT8, no_copy=True)
        images = fn.decoders.image(
            files,
            device="mixed",
            output_type=types.RGB,
            adjust_orientation=False,
            hw_decoder_load=1.0,
            jpeg_fancy_upsampling=True,
        )
        return fn.slice(
            images, start=anchor, shape=[canvas, canvas], axes=(0, 1), out_of_bounds_policy="pad", fill_values=0
        )

    def make(size: int) -> Callable[[int], object]:
        pipeline = definition(
            batch_size=size,
            num_threads=4,
            device_id=torch.cuda.current_device(),
            prefetch_queue_depth=1,
            exec_async=False,
            exec_pipelined=False,
        )
        pipeline.build()

        def run(turn: int) -> None:
            pipeline.feed_input("files", _batch(arrays, turn, size))
            pipeline.schedule_run()
            pipeline.share_outputs()
            torch.cuda.synchronize()
            pipeline.release_outputs()

        return run

    return Way("DALI", dali.__version__, "windows, one tensor", make)


def _nvimgcodec(arrays: Sequence[Any], canvas: int, window: tuple[int, int, int, int]) -> Way:
    codec: Any = importlib.import_module("nvidia.nvimgcodec")

    def make(size: int) -> Callable[[int], object]:
        decoder = codec.Decoder(
            max_num_cpu_threads=4,
            backends=[codec.Backend(codec.BackendKind.HW_GPU_ONLY, 1.0)],
            options=":fancy_upsampling=1",
        )
        params = codec.DecodeParams(apply_exif_orientation=False)
        kept: list[Any] = []

        def run(turn: int) -> None:
            streams = [codec.CodeStream(array) for array in _batch(arrays, turn, size)]
            kept[:] = decoder.decode(streams, images=kept or None, params=params)
            torch.cuda.synchronize()

        return run

    return Way("nvImageCodec", codec.__version__, "images", make)
