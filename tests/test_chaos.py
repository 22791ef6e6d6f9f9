"""A short chaos run, and that its checks notice what must not be."""

import asyncio
from dataclasses import replace
from typing import cast

import grpc
import pytest

import bench.chaos.__main__ as chaos
from bench.chaos.callers import Call, Sent, make
from bench.chaos.outcomes import (
    LOST,
    TWICE,
    WRONG_ANSWER,
    Outcome,
    Spell,
    Strike,
    check_outcomes,
    check_replacements,
    check_speed_of_failure,
    check_struck,
    is_right,
    spells,
)
from bench.chaos.report import Pace, check_paces
from bench.chaos.tree import Footprint, check_memory
from warmlane.v1.classifier_pb2_grpc import ClassifierStub

GOOD = Outcome("unary", "patient", "good", "OK", 10.0, 10.5)
KILLED = Strike("kill", "engine", at_s=10.2, replaced_s=14.0)
FOOTPRINT = Footprint(mib=400, shared_mib=10, supervisor_mib=90, supervisor_files=40, processes=5)


def test_a_short_run_holds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "_WARM_UP_S", 1.5)
    monkeypatch.setattr(chaos, "_SETTLE_S", 4.0)
    # Or nobody would have come back to a new frontend when it is looked at.
    monkeypatch.setattr(chaos, "_CONNECTION_AGE_S", 2)
    # A busy machine's pace wanders: how well the end resembles the start is for longer runs to say.
    short = ("--quiet-seconds", "2", "--looks", "1", "--callers", "12", "--tolerance", "0.9")
    # By this seed a frontend is killed first, then an engine, before anybody is paused.
    strikes = ("--seed", "51", "--seconds", "6", "--pauses-s", "1", "2", "--replace-s", "20")
    assert chaos.main([*short, *strikes, "--no-record"]) == 0, capsys.readouterr().out


def test_a_slower_end_is_noticed() -> None:
    before, slower, later = Pace(100, 10), Pace(60, 15), Pace(60, 20)
    assert [check.held for check in check_paces(before, [later, slower], tolerance=0.3)] == [False, False]
    assert [check.held for check in check_paces(before, [later, before], tolerance=0.3)] == [True, True]


@pytest.mark.parametrize("status", [WRONG_ANSWER, LOST, TWICE, "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"])
def test_a_wrong_outcome_is_noticed(status: str) -> None:
    checks = list(check_outcomes([GOOD, replace(GOOD, status=status)], []))
    assert [check.held for check in checks].count(False) == 1
    assert all(check.held for check in check_outcomes([GOOD], []))


def test_a_run_without_answers_is_noticed() -> None:
    assert not all(check.held for check in check_outcomes([], []))


def test_what_a_call_may_end_with() -> None:
    late, cancelled = replace(GOOD, temper="late"), replace(GOOD, temper="cancels")
    assert is_right(replace(late, status="DEADLINE_EXCEEDED"), [])
    assert not is_right(replace(late, status="CANCELLED"), [])
    assert is_right(replace(cancelled, status="CANCELLED"), [])
    assert is_right(replace(GOOD, status="RESOURCE_EXHAUSTED"), [])
    assert not is_right(replace(GOOD, shape="stream", status="RESOURCE_EXHAUSTED"), [])
    assert is_right(replace(GOOD, image="garbage", status="INVALID_ARGUMENT"), [])
    assert not is_right(replace(GOOD, image="garbage"), [])


class CancelledStub:
    """gRPC's own word for a call that has ended here."""

    def ClassifyBatch(self, *_: object, **__: object) -> asyncio.Future[None]:  # noqa: N802
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(
            grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, grpc.aio.Metadata(), grpc.aio.Metadata(), "", "")
        )
        return failed


@pytest.mark.parametrize(
    ("timeout_s", "cancel_after_s", "status"),
    [(0.0, None, "DEADLINE_EXCEEDED"), (60.0, None, "CANCELLED"), (0.0, 0.0, "CANCELLED")],
)
def test_a_call_out_of_time_was_not_cancelled(timeout_s: float, cancel_after_s: float | None, status: str) -> None:
    call = Call("batch", "late", [Sent("good", 0, b"")], timeout_s=timeout_s, cancel_after_s=cancel_after_s)

    async def make_it() -> None:
        await make(cast(ClassifierStub, CancelledStub()), call)

    asyncio.run(make_it())
    assert [outcome.status for outcome in call.outcomes.values()] == [status]


def test_unavailable_is_right_around_a_strike_only() -> None:
    failed = replace(GOOD, status="UNAVAILABLE")
    struck = spells([KILLED], [], grace_s=1.0)
    assert struck == [Spell(10.2, 15.0)]
    assert is_right(failed, struck)
    assert not is_right(replace(failed, started_s=15.1, ended_s=15.2), struck)
    assert not spells([replace(KILLED, action="pause")], [], grace_s=1.0)


def test_only_calls_that_fail_anyway_may_lose_their_status_with_an_old_connection() -> None:
    failed = replace(GOOD, status="UNAVAILABLE", details="Socket closed (GOAWAY received; Debug Text: max_age)")
    assert not is_right(failed, [])
    assert is_right(replace(failed, temper="late"), [])
    assert is_right(replace(failed, image="huge"), [])
    assert not is_right(replace(failed, temper="late", details="Socket closed"), [])


def test_a_slow_failure_is_noticed() -> None:
    failed = replace(GOOD, status="UNAVAILABLE")
    assert check_speed_of_failure([failed], [KILLED], within_s=1.0).held
    assert not check_speed_of_failure([replace(failed, ended_s=11.5)], [KILLED], within_s=1.0).held


def test_what_never_came_back_is_noticed() -> None:
    assert check_replacements([KILLED], within_s=5).held
    assert not check_replacements([KILLED, replace(KILLED, replaced_s=None)], within_s=5).held
    assert not check_struck([]).held


@pytest.mark.parametrize(
    "grown",
    [{"mib": 460.0}, {"shared_mib": 40.0}, {"supervisor_mib": 130.0}, {"supervisor_files": 50}, {"processes": 6}],
)
def test_growth_is_noticed(grown: dict[str, float]) -> None:
    def held(after: Footprint) -> list[bool]:
        return [check.held for check in check_memory(FOOTPRINT, after, growth=0.05, allowance_mib=16)]

    assert all(held(FOOTPRINT))
    assert held(replace(FOOTPRINT, **grown)).count(False) == 1  # type: ignore[arg-type]
