"""Profiling a process while it serves, and asking for it from outside."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from bench.ladder import mailbox
from bench.live import ProbeError, means, profile_live, read
from pipeline import metrics, profiling
from pipeline.errors import Overloaded
from pipeline.profiling import BEGIN_MARK, END_MARK, WORK_KEY, Done, record, served
from tests.serving import eventually


@contextmanager
def serving(images: int = 3) -> Iterator[None]:
    """Something that counts batches as an engine does."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.002):
            torch.ones(2) * 2
            metrics.BATCH_FILL.observe(images)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
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
        work = read(record(batches=10**9, limit_s=0.2)).work
    assert work.batches > 0
    assert 0.2 <= work.seconds < 5


def test_a_profile_ends_when_it_is_stopped() -> None:
    stop = threading.Event()
    stop.set()
    assert read(record(batches=10**9, limit_s=60, stop=stop)).work.seconds < 5


def test_there_is_one_profile_at_a_time() -> None:
    with serving(), ThreadPoolExecutor() as pool:
        first = pool.submit(record, batches=10**9, limit_s=1.0)
        assert eventually(profiling._recording.locked)
        with pytest.raises(Overloaded, match="one at a time"):
            record(batches=1, limit_s=1.0)
        assert read(first.result()).work.batches > 0


def test_operators_of_other_threads_are_seen_on_a_cpu() -> None:
    with serving():
        found = read(record(batches=20, limit_s=30))
    assert {event.name for event in found.events if event.kind == "op"} >= {"aten::mul"}


def test_there_must_be_something_to_profile() -> None:
    with pytest.raises(ProbeError, match="no batch was served"):
        profile_live(batches=5, limit_s=0.1)


def test_only_what_began_between_the_marks_counts() -> None:
    rows = [
        ("kernel", "before", 0, 5),
        ("user_annotation", BEGIN_MARK, 9, 1),
        ("kernel", "inside", 11, 14),
        ("user_annotation", END_MARK, 20, 10),
        ("kernel", "after", 21, 1),
    ]
    trace = {
        "traceEvents": [dict(zip(("cat", "name", "ts", "dur"), row, strict=True), ph="X") for row in rows],
        WORK_KEY: {"batches": 1, "images": 8, "seconds": 1e-5, "cpu_seconds": 0},
    }
    found = read(json.dumps(trace).encode())
    assert [event.name for event in found.events] == ["inside"]
    assert found.window == (10, 20)
    assert means(found).trace.kernel_ms == pytest.approx(0.009)  # what of it lies in the window


@pytest.mark.parametrize("trace", [b"", b"\x1f\x8b broken", b"[]", b'{"traceEvents": []}', b'{"traceEvents": [3]}'])
def test_what_is_no_profile_of_a_server_is_one_line(trace: bytes) -> None:
    with pytest.raises(ValueError, match="the profile is ") as caught:
        read(trace)
    assert "\n" not in str(caught.value)


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
