"""TIFF files of 16 bits a sample, which Pillow does not write: every value from 0 to 65535 counts, none is clipped."""

import numpy as np

from tests.images.corpus import Sample
from tests.images.make import tiff

_GREY, _RGB = 1, 2
_ORDERS = {"little": "<u2", "big": ">u2"}
_SIZE = (64, 32)


def samples() -> list[Sample]:
    return [sample for order in _ORDERS for sample in _of(order)]


def _of(order: str) -> list[Sample]:
    ramp = np.linspace(0, 65535, 64 * 32).astype(_ORDERS[order]).reshape(32, 64, 1)
    colours = np.concatenate([ramp, ramp[::-1], ramp[:, ::-1]], axis=2)
    high = np.repeat((ramp >> 8).astype(np.uint8), 3, axis=2)
    notes = ("16 bits to 8",)
    return [
        Sample(f"tiff 16-bit grey, {order}-endian", tiff(ramp, _GREY), "TIFF", _SIZE, notes=notes, upright=high),
        Sample(
            f"tiff 16-bit rgb, {order}-endian",
            tiff(colours, _RGB),
            "TIFF",
            _SIZE,
            notes=notes,
            upright=(colours >> 8).astype(np.uint8),
        ),
    ]
