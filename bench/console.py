"""What the bench tools show while they work."""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.status import Status

from bench.service import Service

_QUIET_S = 10.0
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+ \S+ (?:[\w-]+ )?[\w.]+: (.+)$", re.MULTILINE)


@contextlib.contextmanager
def running_service(
    console: Console, args: Sequence[str] = (), *, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """A `Service` whose start is shown.

    Raises:
        ServiceError: as `Service`.
    """
    with contextlib.ExitStack() as stack:
        with console.status("starting the server") as status:
            progress = _Progress(console, status)
            service = stack.enter_context(Service(args, environment=environment, progress=progress))
        console.print(f"the server serves at {service.target}, {service.start_s:.1f} s after its start")
        yield service


class _Progress:
    """A line that changes on a terminal; elsewhere a new line from time to time."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._next_s = 0.0

    def __call__(self, elapsed_s: float, log_tail: str) -> None:
        text = f"starting the server, {elapsed_s:.0f} s: {_last_message(log_tail)}"
        if self._console.is_terminal:
            self._status.update(text)
        elif elapsed_s >= self._next_s:
            self._console.print(text, markup=False, highlight=False)
            self._next_s = elapsed_s + _QUIET_S


def _last_message(log_tail: str) -> str:
    """What the server itself wrote last, without time and origin; libraries write in forms of their own."""
    messages = _LOG_LINE.findall(log_tail)
    return messages[-1] if messages else "importing torch"
