"""Messages between engines and frontends: whole, in order, and never waited for."""

import socket
import time
from collections.abc import Iterator

import pytest

from pipeline.pipes import DescriptorPipe, Pipe, ReplyPipes, make_pipe, messages

COUNT, LONG_S = 20_000, 30.0


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = make_pipe()
    yield pipe
    pipe.close()


def send_many(pipes: ReplyPipes, count: int) -> bytes:
    """Send numbered replies to the first frontend; all of them."""
    sent = [number.to_bytes(44, "big") for number in range(count)]
    for message in sent:
        pipes.send(0, message)
    return b"".join(sent)


def read(reader: socket.socket, count: int) -> list[bytes]:
    """So many messages, as they come, or those that came in time."""
    found: list[bytes] = []
    deadline = time.monotonic() + LONG_S
    while len(found) < count and time.monotonic() < deadline:
        found += messages(reader)
    return found


def test_messages_stay_whole_and_in_order(pipe: Pipe) -> None:
    frontend, engines = pipe
    pipes = ReplyPipes([engines])
    sent = [bytes([number]) * (44 * (number + 1)) for number in range(10)]
    for message in sent:
        pipes.send(0, message)
    assert list(messages(frontend)) == sent
    assert list(messages(frontend)) == []


def test_what_finds_no_room_goes_with_the_next(pipe: Pipe) -> None:
    frontend, engines = pipe
    pipes = ReplyPipes([engines])
    sent = send_many(pipes, 5000)
    first = b"".join(messages(frontend))
    assert 0 < len(first) < len(sent), "it was to fill up"
    pipes.send_rest()
    assert first + b"".join(messages(frontend)) == sent


def test_what_was_for_a_dead_frontend_is_forgotten(pipe: Pipe) -> None:
    frontend, engines = pipe
    pipes = ReplyPipes([engines])
    for _ in range(1000):
        pipes.send(0, bytes(44))
    list(messages(frontend))
    pipes.forget(0)
    pipes.send_rest()
    assert list(messages(frontend)) == []


def test_engines_share_a_pipe(pipe: Pipe) -> None:
    frontend, engines = pipe
    other = engines.dup()
    ReplyPipes([engines]).send(0, b"one")
    ReplyPipes([other]).send(0, b"two")
    assert list(messages(frontend)) == [b"one", b"two"]
    with pytest.raises(BlockingIOError):
        frontend.recv(1)
    other.close()


def test_more_than_the_kernel_takes_in_one_message_goes_in_several(pipe: Pipe) -> None:
    frontend, engines = pipe
    pipes = ReplyPipes([engines])
    sent = send_many(pipes, 20_000)
    found = b""
    while some := list(messages(frontend)):
        found += b"".join(some)
        pipes.send_rest()
    assert found == sent


def test_descriptors_wait_for_room_and_none_is_lost(pipe: Pipe) -> None:
    reader, writer = pipe
    descriptors = DescriptorPipe(writer)
    sent = [number.to_bytes(96, "big") for number in range(COUNT)]
    for each in sent:
        descriptors.send(each)
    assert descriptors._unsent, "it was to fill up"
    found = read(reader, COUNT)
    assert found == sent
    descriptors.send(b"one more")
    assert list(messages(reader)) == [b"one more"], "without the thread, and at once"
    descriptors.close()


def test_two_share_the_room_of_a_pipe(pipe: Pipe) -> None:
    """As frontends do: either may find that the other has taken the room of which both were told."""
    reader, writer = pipe
    pipes = [DescriptorPipe(writer), DescriptorPipe(writer)]
    for number in range(COUNT // 10):
        for index, each in enumerate(pipes):
            each.send(bytes([index]) + number.to_bytes(95, "big"))
    found = read(reader, COUNT // 5)
    for index, each in enumerate(pipes):
        own = [int.from_bytes(message[1:], "big") for message in found if message[0] == index]
        assert own == list(range(COUNT // 10))
        each.close()


def test_what_was_for_a_dead_engine_is_forgotten(pipe: Pipe) -> None:
    reader, writer = pipe
    descriptors = DescriptorPipe(writer)
    for number in range(COUNT):
        descriptors.send(number.to_bytes(96, "big"))
    descriptors.forget()
    left = 0
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        left += len(list(messages(reader)))
    assert 0 < left < COUNT
    descriptors.send(b"for its successor")
    assert list(messages(reader)) == [b"for its successor"]
    descriptors.close()


def test_a_pipe_that_nobody_reads_can_be_closed(pipe: Pipe) -> None:
    descriptors = DescriptorPipe(pipe.writer)
    for _ in range(COUNT):
        descriptors.send(bytes(96))
    started = time.monotonic()
    descriptors.close()
    assert time.monotonic() - started < 5
