"""This service as `python -m server` starts it, in a process that also profiles itself when the ladder asks."""

from bench.ladder.mailbox import attend
from server.__main__ import run
from server.settings import command

if __name__ == "__main__":
    attend()
    command(run)(prog_name="python -m server")
