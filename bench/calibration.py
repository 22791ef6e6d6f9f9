"""How fast this machine is just now, by a loop that no change of the project's code makes faster or slower.

Its pace moves with the machine and its neighbours as a service's does, so a ratio to it can be compared over days. A
unit is a Pillow decode of a sample photograph, a digest of it, a product of two float32 matrices and a bit of plain
Python: what a service spends its time on.
"""

import hashlib
import io
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, wait
from typing import Self

import numpy as np
from PIL import Image

from bench.mix import PHOTOGRAPHS
from pipeline.cpus import available_cpus

_PHOTOGRAPH = PHOTOGRAPHS / "coffee.jpg"
_SIDE = 192
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
    file, matrix = _PHOTOGRAPH.read_bytes(), np.ones((_SIDE, _SIDE), np.float32)
    started_s = time.perf_counter()
    units = 0
    while not units or time.perf_counter() - started_s < seconds:
        _unit(file, matrix)
        units += 1
    return units / (time.perf_counter() - started_s)


def _unit(file: bytes, matrix: np.ndarray) -> int:
    with Image.open(io.BytesIO(file)) as image:
        image.load()
    hashlib.sha256(file).digest()
    product = matrix @ matrix
    return sum(range(_STEPS)) + int(product[0, 0])
