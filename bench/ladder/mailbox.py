"""How the ladder asks a worker, another process, to profile itself: a request and a reply as files in a folder.

The same for the legacy service and for the real one, without a call that either would have to offer.
"""

import json
import os
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.live import Live, ProbeError, profile_live
from bench.trace import TraceSummary

# Names the folder to a worker's process.
VARIABLE = "WARMLANE_LADDER_MAILBOX"
_REQUEST, _REPLY = "request.json", "reply.json"
_POLL_S = 0.05


def ask(folder: Path, batches: int, limit_s: float, timeout_s: float) -> Live:
    """Have the worker profile its next `batches`, or as many as come in `limit_s` seconds.

    Raises:
        ProbeError: the worker could not, or has not answered after `timeout_s` seconds.
    """
    _write(folder / _REQUEST, {"batches": batches, "limit_s": limit_s})
    deadline_s = time.monotonic() + timeout_s
    while (reply := _take(folder / _REPLY)) is None:
        if time.monotonic() > deadline_s:
            raise ProbeError(f"the worker has not sent its profile after {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    if "error" in reply:
        raise ProbeError(reply["error"])
    return Live(TraceSummary(**reply["trace"]), reply["batch_fill"])


def attend() -> None:
    """Answer requests on a thread of this process, if the environment names a folder."""
    if folder := os.environ.get(VARIABLE):
        threading.Thread(target=_attend, args=(Path(folder),), name="mailbox", daemon=True).start()


def _attend(folder: Path) -> None:
    while True:
        if (request := _take(folder / _REQUEST)) is not None:
            _write(folder / _REPLY, _answer(request))
        time.sleep(_POLL_S)


def _answer(request: dict[str, Any]) -> dict[str, object]:
    try:
        return asdict(profile_live(int(request["batches"]), request["limit_s"]))
    except Exception as error:
        # Whatever it was, the ladder is waiting for an answer.
        return {"error": f"{type(error).__name__}: {error}"}


def _take(path: Path) -> dict[str, Any] | None:
    """The content of a file, which is then removed; None if there is none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    path.unlink()
    content: dict[str, Any] = json.loads(text)
    return content


def _write(path: Path, content: object) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(content, file)
    Path(file.name).replace(path)  # atomic: the reader never sees half of it
