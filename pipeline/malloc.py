"""Has the C library keep freed memory for the next forward, instead of giving it back to the kernel each time."""

import ctypes

# malloc.h of glibc; mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Larger than any one tensor of a usual model's small batch. What is larger still is mapped by itself, as images of tens
# of megapixels are, and gone once freed.
_LARGEST_KEPT_BYTES = 128 << 20
_MOST_KEPT_BYTES = 512 << 20


def keep_freed_memory() -> None:
    """Set the thresholds of malloc(3) for this process, above which memory goes back to the kernel.

    A compiled forward on a CPU allocates its tensors anew each time. With glibc's own thresholds, which follow what is
    freed up to 32 MiB, each image of a batch met 1,000 to 4,000 page faults, up to a third of its time (EfficientNet-
    Lite0 in batches of 8 on two lanes: 55 to 61 img/s, and 88 to 91 without; bench/LOG.md, 2026-12-04). Other C
    libraries have no such call, and other allocators do not listen to it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT_BYTES)
