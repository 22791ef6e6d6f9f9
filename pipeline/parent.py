"""For child processes: to end with whoever has started them."""

import ctypes
import os
import signal

# linux/prctl.h
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends in whatever way; `parent` is its process.

    Sees to it too that a signal for all processes of a terminal or a service is left to the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
