"""One line an event, for people or as JSON."""

import contextvars
import json
import logging
import time
from typing import Any

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="-")


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
            "request_id": request_id.get(),
        }
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return json.dumps(event)


def set_up(level: str, *, as_json: bool, process: str = "") -> None:
    """Send the log to standard error.

    Args:
        process: which of several processes it is.
    """
    handler = logging.StreamHandler()
    line = f"%(asctime)s %(levelname).1s {process} %(name)s: %(message)s".replace("  ", " ")
    handler.setFormatter(_JsonFormatter(process or "server") if as_json else logging.Formatter(line))
    # It says at each start without a GPU that there is no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_an_event)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _is_an_event(record: logging.LogRecord) -> bool:
    """Whether gRPC's line is more than that a caller has left in the instant in which its status was sent."""
    return not record.getMessage().startswith("ExecuteBatchError raised in core")
