"""`python -m server`."""

import asyncio
import os
import sys

# Before gRPC is imported: of a port that is taken it would write a line of its own above ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from server import logs
from server.settings import Settings, command
from server.startup import StartError


def run(settings: Settings) -> int:
    """Serve; the exit status of the process."""
    logs.set_up(settings.log_level, as_json=settings.log_json)
    try:
        if settings.frontends:
            from server.supervisor import supervise

            # uvloop would start children from the same thread too, but there is nothing here to speed up.
            asyncio.run(supervise(settings))
            return 0
        return _serve_alone(settings)
    except StartError as error:
        print(f"server: {error}", file=sys.stderr)
        return 2


def _serve_alone(settings: Settings) -> int:
    # Only here: a supervisor needs neither torch nor gRPC.
    import uvloop

    from pipeline.model import ModelError
    from server.app import EngineDied, serve

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except ModelError as error:
        print(f"server: {error}", file=sys.stderr)
        return 2
    except EngineDied as error:
        print(f"server: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    command(run)(prog_name="python -m server")
