"""`python -m server.child frontend 0`: a process that a supervisor has started. Its plan comes on standard input."""

import os
import sys

# See `server.__main__`.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from pipeline.parent import die_with
from server import logs
from server.metrics_files import adopt
from server.plan import Plan, unpack


def main() -> int:
    """Run as planned; the exit status of the process."""
    planned = sys.stdin.buffer.read()
    if not planned:
        return 1  # the supervisor has ended meanwhile
    plan: Plan = unpack(planned)
    die_with(plan.parent)
    logs.set_up(plan.settings.log_level, as_json=plan.settings.log_json, process=str(plan.place))
    adopt(str(plan.place))
    # Only now: these make metrics, and metrics that exist cannot be adopted.
    if plan.place.role == "frontend":
        from server.frontend import run
    else:
        from server.engine_process import run
    return run(plan)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing is left to do, and libraries that end their threads in turn take seconds for it.
    os._exit(status)
