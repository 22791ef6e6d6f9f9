"""Sleeps of microseconds end on time, on the thread that asked for it and on no other."""

import threading
import time
from pathlib import Path
from statistics import median

import pytest

from pipeline.naps import sleep_precisely


def slack_ns() -> int:
    """Of this thread, as the kernel has it."""
    path = Path(f"/proc/{threading.get_native_id()}/timerslack_ns")
    if not path.exists():
        pytest.skip("this kernel does not tell")
    return int(path.read_text())


def on_a_thread(found: list[int]) -> None:
    sleep_precisely()
    found.append(slack_ns())
    found.append(int(1e9 * median(timed_nap_s() for _ in range(200))))


def timed_nap_s() -> float:
    started = time.perf_counter()
    time.sleep(50e-6)
    return time.perf_counter() - started


def test_only_the_thread_that_asks_wakes_on_time() -> None:
    before, found = slack_ns(), list[int]()
    thread = threading.Thread(target=on_a_thread, args=(found,))
    thread.start()
    thread.join()
    assert found[0] == 1000 < before
    assert slack_ns() == before
    assert found[1] >= 50_000
