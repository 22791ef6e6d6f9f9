"""How fast this machine is just now, by a loop that no change of the project's code makes faster or slower.

Its pace moves with the machine and its neighbours as a service's does, so a ratio to it can be compared over days. A
unit is a Pillow decode of a sample photograph, a digest of it, arithmetic on a float32 array and a bit of plain Python:
what a service spends its time on. All of it runs on one thread: a matrix product would bring threads of its own, and
those of several processes get in each other's way.
"""

import hashlib
import io
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.mix import PHOTOGRAPHS
from pipeline.cpus import available_cpus

_PHOTOGRAPH = PHOTOGRAPHS / "coffee.jpg"
_NUMBERS = 200_000
_STEPS = 20_000


class Calibration:
    """A process a CPU, idle until it is asked. Close it, or use it in a `with` block."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        # A pool each: one pool of several could give two loops to the same process.
        self._pools = [ProcessPoolExecutor(1, mp_context=spawn) for _ in range(available_cpus())]
        wait([pool.submit(work, 0.0) for pool in self._pools])

    def units_s(self, seconds: float = 1.0) -> float:
        """Units a second that all CPUs together do now."""
        futures = [pool.submit(work, seconds) for pool in self._pools]
        return sum(future.result() for future in futures)

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def work(seconds: float) -> float:
    """Units a second that this process does, of at least one unit."""
    file, array = _PHOTOGRAPH.read_bytes(), np.linspace(0, 1, _NUMBERS, dtype=np.float32)
    started_s = time.perf_counter()
    units = 0
    while not units or time.perf_counter() - started_s < seconds:
        _unit(file, array)
        units += 1
    return units / (time.perf_counter() - started_s)


def _unit(file: bytes, array: NDArray[np.float32]) -> float:
    with Image.open(io.BytesIO(file)) as image:
        image.load()
    hashlib.sha256(file).digest()
    return sum(range(_STEPS)) + float(np.exp(array).sum())
