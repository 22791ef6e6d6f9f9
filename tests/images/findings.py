"""Files that fuzzing (`make fuzz`) has found to be answered with an internal error, or not in time, and their outcome now."""

from pipeline.errors import CorruptImage
from tests.images.corpus import Sample
from tests.images.make import png, png_chunk


def samples() -> list[Sample]:
    return [
        Sample(
            "png of 0 bits with a colour key",
            png(4, 1, 0, 2, b"\0\0", png_chunk(b"tRNS", b"\0\1")),
            "PNG",
            error=CorruptImage,
            words=("damaged PNG", "0 bits"),
        ),
    ]
