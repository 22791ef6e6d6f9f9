"""Profiling a process while it serves, and asking for it from outside."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.events import Event
from bench.ladder import mailbox
from bench.ladder.probe import _BEGIN, _END, Done, ProbeError, _slice, live_events, profile_live, served
from pipeline import metrics


@contextmanager
def serving(images: int = 3) -> Iterator[None]:
    """Something that counts batches as an engine does."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.002):
            metrics.BATCH_FILL.observe(images)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_what_was_served_is_read_from_the_metrics() -> None:
    before = served()
    metrics.BATCH_FILL.observe(5)
    metrics.BATCH_FILL.observe(2)
    assert served().since(before) == Done(batches=2, images=7)


def test_a_profile_ends_with_the_batches_asked_for() -> None:
    with serving(images=3):
        live = profile_live(batches=20, limit_s=30)
    assert 20 <= live.trace.batches < 60
    assert live.batch_fill == pytest.approx(3, abs=0.5)


def test_a_profile_ends_when_its_time_is_over() -> None:
    with serving():
        _, work = live_events(batches=10**9, limit_s=0.2)
    assert work.batches > 0


def test_there_must_be_something_to_profile() -> None:
    with pytest.raises(ProbeError, match="no batch was served"):
        profile_live(batches=5, limit_s=0.1)


def test_only_what_began_between_the_marks_counts() -> None:
    events = [
        Event("kernel", "before", 0, 5),
        Event("mark", _BEGIN, 9, 10),
        Event("kernel", "inside", 11, 25),
        Event("mark", _END, 20, 30),
        Event("kernel", "after", 21, 22),
    ]
    assert [event.name for event in _slice(events)] == ["inside"]


def test_a_worker_answers_its_mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mailbox.VARIABLE, str(tmp_path))
    mailbox.attend()
    with serving(images=4):
        live = mailbox.ask(tmp_path, batches=10, limit_s=20, timeout_s=60)
    assert live.trace.batches >= 10
    assert live.batch_fill == pytest.approx(4, abs=0.5)
    with pytest.raises(ProbeError, match="no batch was served"):
        mailbox.ask(tmp_path, batches=10, limit_s=0.1, timeout_s=60)


def test_a_worker_that_does_not_answer(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(ProbeError, match="has not sent its profile"):
        mailbox.ask(tmp_path, batches=10, limit_s=0.1, timeout_s=0.2)
    assert time.monotonic() - started < 10
