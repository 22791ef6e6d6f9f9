"""What one of several processes may have."""

from pipeline.cpus import available_cpus
from pipeline.headers import Limits
from server.settings import Settings


def decode_threads(settings: Settings) -> int:
    """Images that a frontend decodes at a time."""
    return settings.decode_threads or share_of_cpus(max(settings.frontends, 1))


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
