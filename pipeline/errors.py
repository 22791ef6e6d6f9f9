"""What can go wrong with a request, as the caller's fault or ours.

    PipelineError
    ├── InvalidRequest            a field of the request is out of its range
    ├── BadImage                  the bytes cannot be classified, and sending them again will not help
    │   ├── NotAnImage            empty, text, HTML, a format nobody could mean as an image
    │   ├── UnsupportedImage      an image, but of a format or kind that is not decoded here
    │   ├── CorruptImage          starts as an image but cannot be decoded whole: truncated or damaged
    │   ├── ImageTooLarge         over the limit on bytes, pixels or frames
    │   └── DecodeTimeout         takes longer to decode than any image should
    ├── UnknownModel              no lane serves the named model
    ├── Overloaded                no room now: try again after `retry_after_ms`
    ├── DeadlineExceeded          the caller's deadline has passed, or cannot be met
    └── Unavailable               starting, draining, or the engine is down

The first line of each message is written for the caller: it never holds a path, a trace or another caller's data.
"""


class PipelineError(Exception):
    """Root of everything that a request can be refused with."""


class InvalidRequest(PipelineError, ValueError):
    """A field of the request is out of its range."""


class BadImage(PipelineError, ValueError):
    """The bytes cannot be classified."""


class NotAnImage(BadImage):
    """The bytes are no image; the message says what they look like."""


class UnsupportedImage(BadImage):
    """An image of a format or kind that is not decoded here; the message names what is supported."""


class CorruptImage(BadImage):
    """Starts as an image, but is truncated or damaged."""


class ImageTooLarge(BadImage):
    """Over a limit. The message names the limit, the value found and the setting that moves the limit."""

    def __init__(self, what: str, value: int, limit: int, unit: str, setting: str) -> None:
        super().__init__(f"{what} is {value} {unit}, over the limit of {limit} {unit} ({setting})")


class DecodeTimeout(BadImage):
    """Takes longer to decode than any image should."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"the image takes longer to decode than the limit of {limit_s:g} s (--decode-timeout-s)")


class UnknownModel(PipelineError):
    """No lane serves the named model."""


class Overloaded(PipelineError):
    """There is no room for the request now.

    Attributes:
        retry_after_ms: when the caller may try again, in milliseconds.
    """

    def __init__(self, message: str, retry_after_ms: int = 100) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class DeadlineExceeded(PipelineError):
    """The caller's deadline has passed, or cannot be met."""


class Unavailable(PipelineError):
    """The service cannot take requests: starting, draining, or its engine is down."""
