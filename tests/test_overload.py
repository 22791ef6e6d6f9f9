"""The open loop keeps its schedule whatever the server does, and the overload's checks notice what must not be."""

import time
from dataclasses import replace

import pytest

from bench import overload
from bench.open_loop import Called, Schedule, open_loop
from bench.overload import Results, summarize
from bench.palette import COLOURS, picture
from tests.serving import in_process

SCHEDULE = Schedule("", rate=10, open_s=100, seconds=2, patience_s=(1.0,))
FIRST = Called(colour=7, due_s=100.0, sent_s=100.001, deadline_s=101.001, ended_s=100.2, status="OK")
AGAIN = replace(FIRST, due_s=101.5, sent_s=101.5, deadline_s=102.5, ended_s=102.5, status="DEADLINE_EXCEEDED")


def summary(*forwarded: tuple[int, float]) -> Results:
    return summarize([FIRST, AGAIN], forwarded, SCHEDULE, peak_img_s=0.5, queue_s=0.3)


def failed(results: Results) -> list[str]:
    return [name for name, held, _ in results.checks() if not held]


def test_what_is_counted() -> None:
    results = summary((7, 50.0), (7, 100.1), (7, 102.0))
    assert (results.forwarded, results.forwarded_late) == (2, 0), "what came before the overload does not count"
    assert results.goodput_img_s == 0.5
    assert results.p99_ms == pytest.approx(200)
    assert results.statuses == {"OK": 1, "DEADLINE_EXCEEDED": 1}
    assert not failed(results)


def test_an_expired_image_in_a_forward_is_noticed() -> None:
    assert summary((7, 101.4)).forwarded_late == 1
    assert summary((7, 102.6)).forwarded_late == 1
    assert "no image whose deadline had passed reached a forward" in failed(summary((7, 101.4)))


@pytest.mark.parametrize(
    "worse", [{"goodput_img_s": 0.4}, {"p99_ms": 901.0}, {"lag_p99_ms": 21.0}, {"statuses": {"OK": 1, "INTERNAL": 1}}]
)
def test_what_falls_short_is_noticed(worse: dict[str, object]) -> None:
    assert len(failed(replace(summary(), **worse))) == 1  # type: ignore[arg-type]


def test_a_slow_server_does_not_slow_the_schedule() -> None:
    """Each image takes half a second, one at a time, and the rate is forty a second."""
    for colour in range(COLOURS):
        picture(colour)  # kept: else the loop would make them when the first one is due already
    with in_process(
        "--slots", "4", "--max-batch-images", "4", "--batch-size", "1", "--model", "tests.slow_model:Slow"
    ) as server:
        schedule = Schedule(server.target, rate=40, open_s=time.monotonic() + 1, seconds=2, patience_s=(1.0,))
        called = open_loop(schedule)
    due = [due_s for due_s, _ in schedule.times()]
    assert sorted(each.due_s for each in called) == due
    assert len(due) > 50
    assert all(each.sent_s >= each.due_s - 0.002 for each in called), "the loop's clock has whole milliseconds"
    assert sorted(each.sent_s - each.due_s for each in called)[len(called) // 2] < 0.2
    assert {each.status for each in called} >= {"RESOURCE_EXHAUSTED"}


def test_a_short_overload_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its figures depend on the machine; that no expired image reached a forward does not."""
    monkeypatch.setattr(overload, "_WARM_UP_S", 0.5)
    overload.main(["--seconds", "2", "--peak-seconds", "1", "--no-record"])
    printed = capsys.readouterr().out
    assert '"forwarded_late": 0' in printed
    assert '"forwarded": 0,' not in printed
