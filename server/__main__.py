"""`python -m server`."""

import asyncio
import sys

import uvloop

from pipeline.model import ModelError
from server import logs
from server.app import StartError, serve
from server.settings import Settings, command


def run(settings: Settings) -> int:
    """Serve; the exit status of the process."""
    logs.set_up(settings.log_level, as_json=settings.log_json)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except (StartError, ModelError) as error:
        print(f"server: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    command(run)(prog_name="python -m server")
