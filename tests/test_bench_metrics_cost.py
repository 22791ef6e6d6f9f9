"""The benchmark of what counting costs: a short run of the real one."""

import json

import pytest

from bench import metrics_cost


def test_a_short_run_ends_in_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    code = metrics_cost.main(["--seconds", "0.3", "--rounds", "3", "--no-record"])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    results = record["results"]
    assert record["bench"] == "metrics-cost"
    assert 20 < results["bare_call_us"] < 20_000
    assert 0.1 < results["answer_us"] < 100
    assert 0.01 < results["engine_us"] < 100
    assert code == int(max(results["frontend_percent"], results["engine_percent"]) >= metrics_cost.MOST_PERCENT)


def test_shares_are_of_a_call_and_of_the_engines_budget() -> None:
    found = metrics_cost.shares({"answer_us": 2.0, "batch_us": 8.0}, call_us=200.0)
    assert found["frontend_percent"] == pytest.approx(1.0)
    assert found["engine_us"] == pytest.approx(1.0)
    assert found["engine_percent"] == pytest.approx(1.5)
