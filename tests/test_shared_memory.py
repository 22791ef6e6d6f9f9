"""The blocks of all frontends: their memory is taken once, or the start ends."""

import os

import pytest

from server.shared_memory import SharedMemory
from server.startup import StartError


def test_blocks_are_empty_until_they_are_divided() -> None:
    memory = SharedMemory(frontends=3, engines=2, slots=4)
    assert [os.fstat(fd).st_size for fd in memory.blocks] == [0, 0, 0]
    layout = memory.divide(16)
    assert [os.fstat(fd).st_size for fd in memory.blocks] == [layout.size] * 3
    assert memory.layout == layout
    assert memory.page.in_flight.shape == (3, 2)


def test_a_restarted_engine_finds_them_as_they_are() -> None:
    memory = SharedMemory(1, 1, 4)
    assert memory.divide(16) is memory.divide(16)


def test_devices_that_want_other_canvases_are_refused() -> None:
    memory = SharedMemory(1, 2, 4)
    memory.divide(544)
    with pytest.raises(StartError, match="--devices of one kind only: this and others want canvases of 224 and 544"):
        memory.divide(224)


def test_more_than_there_is_is_refused_before_it_is_taken() -> None:
    memory = SharedMemory(2, 1, slots=100_000_000)
    with pytest.raises(StartError, match=r"no memory for .* MiB of slots .*MiB are free"):
        memory.divide(544)
    assert [os.fstat(fd).st_size for fd in memory.blocks] == [0, 0]
    assert memory.layout is None
