"""Files for which fuzzing (`make fuzz`) found an internal error, a hang or a waste of memory; what they give now."""

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
