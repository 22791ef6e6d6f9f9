"""The blocks of all frontends: their memory is taken once, or the start ends."""

import os
from contextlib import closing

import pytest

from server.shared_memory import SharedMemory
from server.startup import StartError


def test_blocks_are_empty_until_they_are_divided() -> None:
    with closing(SharedMemory(frontends=3, engines=2, slots=4)) as memory:
        assert [os.fstat(fd).st_size for fd in memory.blocks] == [0, 0, 0]
        layout = memory.divide(16)
        assert [os.fstat(fd).st_size for fd in memory.blocks] == [layout.size] * 3
        assert memory.layout == layout
        assert memory.page.in_flight.shape == (3, 2)


def test_a_restarted_engine_finds_them_as_they_are() -> None:
    with closing(SharedMemory(1, 1, 4)) as memory:
        assert memory.divide(16) is memory.divide(16)


def test_devices_that_want_other_canvases_are_refused() -> None:
    with closing(SharedMemory(1, 2, 4)) as memory:
        memory.divide(544)
        refusal = "--devices of one kind only: this and others want canvases of 224 and 544"
        with pytest.raises(StartError, match=refusal):
            memory.divide(224)


def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    with closing(SharedMemory(2, 1, slots=100_000_000)) as memory:
        with pytest.raises(StartError, match=r"no memory for .* MiB of slots .*MiB are free"):
            memory.divide(544)
        assert [os.fstat(fd).st_size for fd in memory.blocks] == [0, 0]
        assert memory.layout is None


def test_closed_it_leaves_no_descriptors() -> None:
    before = os.listdir("/proc/self/fd")
    with closing(SharedMemory(2, 1, slots=4)) as memory:
        assert len(os.listdir("/proc/self/fd")) > len(before)
        memory.divide(16)
    del memory  # The page is mapped as long as somebody can read it.
    assert os.listdir("/proc/self/fd") == before
