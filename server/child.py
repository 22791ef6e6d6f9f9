"""`python -m server.child frontend 0`: a process that a supervisor has started. Its plan comes on standard input."""

import os
import sys
from collections.abc import Callable

# See `server.__main__`.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from pipeline.parent import die_with
from server import logs
from server.metrics_files import adopt
from server.plan import Plan, unpack


def main(run_frontend: Callable[[Plan], int] | None = None) -> int:
    """Run as planned; the exit status of the process.

    Args:
        run_frontend: in the place of `frontend.run`.
    """
    planned = sys.stdin.buffer.read()
    if not planned:
        return 1  # the supervisor has ended meanwhile
    plan: Plan = unpack(planned)
    die_with(plan.parent)
    logs.set_up(plan.settings.log_level, as_json=plan.settings.log_json, process=str(plan.place))
    adopt(str(plan.place))
    # Only now: these make metrics, and metrics that exist cannot be adopted.
    if plan.place.role == "engine":
        from server import engine_process

        return engine_process.run(plan)
    if run_frontend is not None:
        return run_frontend(plan)
    from server import frontend

    return frontend.run(plan)


def end(status: int) -> None:
    """End the process: nothing is left to do, and libraries that end their threads in turn take seconds for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    end(main())
