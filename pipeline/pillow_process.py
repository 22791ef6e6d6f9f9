"""Pillow in a process of its own, so that a decode that takes too long, or crashes, can be ended and harms nobody.

    this process                                pipeline.pillow_worker
      the file's bytes            ---memory-->
      what to decode              --channel-->    decode
      pixels                      <--memory---    in place, shared
      conversions, or an error    <-channel---

Answers are JSON: nothing that comes from a process that has read a stranger's file is unpickled.
"""

import json
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

import numpy as np

from pipeline.decode import SCRATCH_BYTES, Pixels
from pipeline.errors import CorruptImage, DecodeTimeout, UnsupportedImage
from pipeline.pillow_decode import decode_with_pillow

log = logging.getLogger(__name__)

# The module that runs there.
WORKER = "pipeline.pillow_worker"
_START_S = 60.0
# How a decoder ends that a damaged file has led astray. A process ends otherwise too: by the kernel, out of memory.
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
_REFUSALS = {error.__name__: error for error in (CorruptImage, UnsupportedImage)}


class PillowProcess:
    """Decodes for one thread. The process is started by the first image, and again after one that has ended it.

    It dies with the thread that uses this; `close` is for those who want to see it gone.

    Args:
        niceness: by how much it stands back for others, 0 to 19.

    Attributes:
        timeout_s: how long a decode may take.
    """

    def __init__(self, timeout_s: float, niceness: int = 0) -> None:
        self.timeout_s = timeout_s
        self._niceness = niceness
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None
        self._has_started = False
        self._memory_fd = os.memfd_create("warmlane-pillow")
        os.ftruncate(self._memory_fd, SCRATCH_BYTES)
        self._memory = mmap.mmap(self._memory_fd, SCRATCH_BYTES)

    @property
    def pid(self) -> int | None:
        """Of the process that lives; None before the first image, and after one that has ended it."""
        return self._process.pid if self._process is not None else None

    def decode(self, data: bytes, kind: str, size: tuple[int, int], reduction: int = 1) -> tuple[Pixels, list[str]]:
        """As `pillow_decode.decode_with_pillow`; the pixels hold until the next decode.

        Raises:
            DecodeTimeout: it took too long; its process is gone.
            CorruptImage: also where the decoder crashed.
            RuntimeError: anything that no image should cause.
        """
        width, height = (-(-side // reduction) for side in size)
        count = 3 * width * height
        asked = {"kind": kind, "size": size, "reduction": reduction}
        memory = self._memory
        if count <= SCRATCH_BYTES:
            answer = self._ask(data, asked)
        else:
            memory, answer = self._ask_for_large(data, asked, count)
        if "error" in answer:
            raise _REFUSALS.get(answer["error"], RuntimeError)(answer["words"])
        return np.frombuffer(memory, np.uint8, count).reshape(height, width, 3), answer["conversions"]

    def close(self) -> None:
        """End the process."""
        self._end()
        os.close(self._memory_fd)

    def _ask_for_large(self, data: bytes, asked: dict[str, Any], count: int) -> tuple[mmap.mmap, dict[str, Any]]:
        """Into memory that goes with the pixels, where they would be too many to keep."""
        fd = os.memfd_create("warmlane-pixels")
        try:
            os.ftruncate(fd, count)
            return mmap.mmap(fd, count), self._ask(data, asked, fd)
        finally:
            os.close(fd)

    def _ask(self, data: bytes, asked: dict[str, Any], fd: int | None = None) -> dict[str, Any]:
        process, channel = self._running()
        self._wait_for_start(channel)
        # Through memory, which the pixels are not written to before the file has been read, a file is there at once.
        in_memory = len(data) if len(data) <= SCRATCH_BYTES else 0
        asked |= {"in_memory": in_memory, "has_own_memory": fd is not None}
        self._memory[:in_memory] = data[:in_memory]
        try:
            channel.send_bytes(json.dumps(asked).encode())
            if not in_memory:
                channel.send_bytes(data)
            if fd is not None:
                send_handle(channel, fd, process.pid)
            if channel.poll(self.timeout_s):
                answer: dict[str, Any] = json.loads(channel.recv_bytes())
                return answer
        except (EOFError, OSError):
            raise self._crashed(asked["kind"]) from None
        self._end()
        log.warning(
            "a %s took over %g s to decode (--decode-timeout-s): its decoder was killed", asked["kind"], self.timeout_s
        )
        raise DecodeTimeout(self.timeout_s)

    def _running(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._process is not None and self._process.poll() is not None:
            self._end()  # somebody has killed it between two images
        if self._process is None or self._channel is None:
            self._channel, theirs = Pipe()
            fds = theirs.fileno(), self._memory_fd
            words = [os.getpid(), *fds, self._niceness]
            command = [sys.executable, "-m", WORKER, *map(str, words)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._has_started = False
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, env=environment)
            theirs.close()
        return self._process, self._channel

    def _wait_for_start(self, channel: Connection) -> None:
        """Imports take longer than most images, and are no part of an image's time."""
        if self._has_started:
            return
        with suppress(EOFError, OSError):
            if channel.poll(_START_S):
                channel.recv_bytes()
                self._has_started = True
                return
        raise RuntimeError(f"a process that decodes images could not start: status {self._end()}")

    def _crashed(self, kind: str) -> Exception:
        """What to raise: a crash is the file's fault, any other end is not."""
        status = self._end()
        if -status not in _CRASHES:
            return RuntimeError(f"a process that decodes images ended with status {status}")
        log.error("the decoder of a %s has crashed: %s", kind, signal.Signals(-status).name)
        return CorruptImage(f"damaged {kind}: its decoder crashed")

    def _end(self) -> int:
        """The exit status; negative for a signal."""
        if self._process is None or self._channel is None:
            return 0
        self._channel.close()
        self._process.kill()
        status = self._process.wait()
        self._process = self._channel = None
        return status


class PillowProcesses:
    """A `PillowProcess` for each thread that decodes, from its first image on that is for Pillow.

    Args:
        timeout_s: how long a decode may take; 0 for any time, and then there are no processes.
        niceness: by how much they stand back for others, 0 to 19.
    """

    def __init__(self, timeout_s: float, niceness: int = 0) -> None:
        self._timeout_s = timeout_s
        self._niceness = niceness
        self._thread = threading.local()
        self._all: list[PillowProcess] = []

    def decode(self, data: bytes, kind: str, size: tuple[int, int], reduction: int = 1) -> tuple[Pixels, list[str]]:
        """See `PillowProcess.decode`; the pixels hold until the thread's next decode."""
        if not self._timeout_s:
            return decode_with_pillow(data, kind, size, reduction)
        process: PillowProcess | None = getattr(self._thread, "process", None)
        if process is None:
            process = self._thread.process = PillowProcess(self._timeout_s, self._niceness)
            self._all.append(process)
        return process.decode(data, kind, size, reduction)

    def close(self) -> None:
        """End the processes; no thread decodes any more."""
        for process in self._all:
            process.close()
