"""One line an event, for people or as JSON."""

import json
import logging
import time
from typing import Any

from server.status import request_id


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id.get(),
        }
        if record.exc_info:
            event["trace"] = self.formatException(record.exc_info)
        return json.dumps(event)


def set_up(level: str, *, as_json: bool) -> None:
    """Send the log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    )
    # It says at each start without a GPU that there is no GPU.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
