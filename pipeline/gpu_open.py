"""Opens a GPU's JPEG decoder, if it has one and its pixels are those of the CPU's decoder."""

import logging
from dataclasses import dataclass

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray

from pipeline.gpu_decode import JpegDecoder
from pipeline.gpu_rows import GpuRows
from pipeline.nvjpeg import Job, NoJpegEngine, NvJpeg

log = logging.getLogger(__name__)

# An H200 decodes 18,400 to 24,400 files of 500x375 a second in batches of 8, 24,800 to 39,500 in batches of 32 and no
# more to speak of in batches of 64, which take longer to be ready (bench/LOG.md, 2026-11-30).
MOST_AT_A_TIME = 32
# In grey levels. Seen on an H200: 1 and 0.0001.
MOST_DIFFERENCE, MOST_MEAN_DIFFERENCE = 2, 0.05
_SIDE = 160
_WINDOW = (10, 6, 96, 120)


@dataclass(frozen=True, slots=True)
class GpuDecode:
    """What an engine needs to decode on its GPU.

    Attributes:
        most: images decoded at a time.
        name: of the decoder, for people.
    """

    decoder: JpegDecoder
    rows: GpuRows
    most: int
    name: str


def open_gpu_decode(device: torch.device, canvas: int, in_lanes: int, *, is_wanted: bool) -> GpuDecode | None:
    """The decoder of a GPU; None, and one line in the log, where the CPU is to decode instead.

    Args:
        canvas: side S of a slot's canvas, in pixels.
        in_lanes: images that all lanes hold.
        is_wanted: whether somebody has asked for it, so that its absence is worth a warning.
    """
    try:
        decoder = NvJpeg(device, MOST_AT_A_TIME, 3 * canvas)
        rows = GpuRows(2 * MOST_AT_A_TIME + in_lanes, canvas, device)
        check(decoder, rows, canvas)
    except (NoJpegEngine, RuntimeError) as error:
        log.log(logging.WARNING if is_wanted else logging.INFO, "JPEGs are decoded on the CPU: %s", error)
        return None
    return GpuDecode(decoder, rows, MOST_AT_A_TIME, f"nvJPEG on {decoder.engines} engines")


def check(decoder: JpegDecoder, rows: GpuRows, canvas: int) -> None:
    """Decode built-in pictures on both sides.

    Raises:
        NoJpegEngine: they differ, or the GPU does not take them.
    """
    left, top, width, height = _WINDOW
    for name, file in samples().items():
        (row,) = rows.take(1)
        data = np.frombuffer(file, np.uint8)
        is_decoded = decoder.decode([Job(data.ctypes.data, len(file), row.address, _WINDOW)]) == [True]
        found = row.flat.view(canvas, canvas, 3)[:height, :width].cpu().numpy()
        row.release()
        if not is_decoded:
            raise NoJpegEngine(f"the GPU does not decode the built-in picture {name}")
        wanted = simplejpeg.decode_jpeg(file, "RGB")[top : top + height, left : left + width]
        difference = np.abs(found.astype(int) - wanted)
        if difference.max() > MOST_DIFFERENCE or difference.mean() > MOST_MEAN_DIFFERENCE:
            raise NoJpegEngine(
                f"the GPU's pixels of the built-in picture {name} differ by {difference.max()} levels, "
                f"{difference.mean():.3f} on average, from the CPU's"
            )


def samples() -> dict[str, bytes]:
    """JPEG files of one picture, by chroma sampling."""
    picture = _picture()
    files = {
        sampling: simplejpeg.encode_jpeg(picture, quality=90, colorspace="RGB", colorsubsampling=sampling)
        for sampling in ("444", "422", "420")
    }
    files["grey"] = simplejpeg.encode_jpeg(picture[:, :, :1].copy(), quality=90, colorspace="GRAY")
    return files


def _picture() -> NDArray[np.uint8]:
    """uint8 [160, 160, 3]: waves of all lengths and directions, other ones in each channel."""
    y, x = np.mgrid[0:_SIDE, 0:_SIDE] / _SIDE
    channels = [127.5 + 127.5 * np.sin(40 * (x - 0.3 * k) ** 2 + 60 * k * x * y + 20 * y) for k in range(3)]
    return np.stack(channels, axis=-1).astype(np.uint8)
