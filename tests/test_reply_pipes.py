"""Replies from engines to frontends: whole, in order, and never waited for."""

import pytest

from pipeline.reply_pipes import ReplyPipes, received_replies, reply_pipe


def test_messages_stay_whole_and_in_order() -> None:
    frontend, engines = reply_pipe()
    pipes = ReplyPipes([engines])
    sent = [bytes([number]) * (44 * (number + 1)) for number in range(10)]
    for message in sent:
        pipes.send(0, message)
    assert list(received_replies(frontend)) == sent
    assert list(received_replies(frontend)) == []
    frontend.close()
    engines.close()


def test_what_finds_no_room_goes_with_the_next() -> None:
    frontend, engines = reply_pipe()
    pipes = ReplyPipes([engines])
    sent = b""
    for number in range(5000):
        message = number.to_bytes(44, "big")
        pipes.send(0, message)
        sent += message
    first = b"".join(received_replies(frontend))
    assert 0 < len(first) < len(sent), "it was to fill up"
    pipes.send_rest()
    assert first + b"".join(received_replies(frontend)) == sent
    frontend.close()
    engines.close()


def test_what_was_for_a_dead_frontend_is_forgotten() -> None:
    frontend, engines = reply_pipe()
    pipes = ReplyPipes([engines])
    for _ in range(1000):
        pipes.send(0, bytes(44))
    list(received_replies(frontend))
    pipes.forget(0)
    pipes.send_rest()
    assert list(received_replies(frontend)) == []
    frontend.close()
    engines.close()


def test_engines_share_a_pipe() -> None:
    frontend, engines = reply_pipe()
    other = engines.dup()
    ReplyPipes([engines]).send(0, b"one")
    ReplyPipes([other]).send(0, b"two")
    assert list(received_replies(frontend)) == [b"one", b"two"]
    with pytest.raises(BlockingIOError):
        frontend.recv(1)
    for end in (frontend, engines, other):
        end.close()


def test_more_than_the_kernel_takes_in_one_message_goes_in_several() -> None:
    frontend, engines = reply_pipe()
    pipes = ReplyPipes([engines])
    sent = b""
    for number in range(20_000):
        message = number.to_bytes(44, "big")
        pipes.send(0, message)
        sent += message
    found = b""
    while messages := list(received_replies(frontend)):
        found += b"".join(messages)
        pipes.send_rest()
    assert found == sent
    frontend.close()
    engines.close()
