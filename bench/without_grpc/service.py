"""`python -m bench.without_grpc.service SETTING...`: the server with feeders in the place of its frontends."""

from server import children
from server.__main__ import run
from server.settings import command

if __name__ == "__main__":
    children.child_module = "bench.without_grpc.feeder"
    command(run)(prog_name="python -m bench.without_grpc.service")
