"""What one of several processes may have."""

from pipeline.cpus import available_cpus
from pipeline.headers import Limits
from pipeline.options import CPU_BATCH_SIZE, CUDA_BATCH_SIZE, CUDA_LANES
from server.settings import Settings


def decode_threads(settings: Settings) -> int:
    """Images that a frontend decodes at a time."""
    return settings.decode_threads or share_of_cpus(max(settings.frontends, 1))


def batch_size(settings: Settings, on_gpu: bool) -> int:
    """Most images in one forward."""
    return settings.batch_size or (CUDA_BATCH_SIZE if on_gpu else CPU_BATCH_SIZE)


def lanes_and_threads(settings: Settings, on_gpu: bool) -> tuple[int, int]:
    """Forwards that run at the same time on a device, and the threads of each.

    On a CPU, lanes of one thread do more than one lane of all: its threads wait for each other at every operator, and
    for decode threads too (bench/LOG.md, 2026-12-04).
    """
    cpus = share_of_cpus(len(settings.devices))
    if on_gpu:
        return settings.lanes or CUDA_LANES, settings.threads or cpus
    threads = settings.threads or (max(cpus // settings.lanes, 1) if settings.lanes else 1)
    return settings.lanes or max(cpus // threads, 1), threads


def image_limits(settings: Settings) -> Limits:
    """What an image may have at most, and what of it is ignored."""
    return Limits(
        settings.max_image_bytes,
        settings.max_image_pixels,
        settings.max_image_frames,
        max_decoded_bytes=settings.max_decoded_bytes,
        decode_timeout_s=settings.decode_timeout_s,
        ignore_exif=settings.exif == "ignore",
        prescale=settings.prescale,
    )


def share_of_cpus(processes: int) -> int:
    """CPUs for each of several processes, at least one."""
    return max(available_cpus() // processes, 1)
