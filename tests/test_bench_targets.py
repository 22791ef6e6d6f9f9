import pytest

from bench.targets import Bares, Figure, Round, figures_table, is_quiet, memory_figure, speed_figures, start_figures


def a_round(service_img_s: float = 85.0, single_p50_ms: float = 13.0, others_cpu_percent: float = 0.0) -> Round:
    return Round(
        engine_img_s=95.0,
        service_img_s=service_img_s,
        batch_fill=8.0,
        server_cpu_percent=190.0,
        single_p50_ms=single_p50_ms,
        single_decode_ms=2.0,
        single_rest_ms=1.0,
        others_cpu_percent=others_cpu_percent,
    )


def figures(bares: list[Bares], rounds: list[Round]) -> dict[str, Figure]:
    found = list(speed_figures(bares, rounds))
    # Two lines bear the same words, one below the service and one below the engine: the first is the service's.
    return {figure.name.strip(): figure for figure in reversed(found)}


def test_a_round_is_held_against_the_bare_forward_before_and_after_it() -> None:
    found = figures([Bares(90.0, 9.0), Bares(110.0, 11.0)], [a_round()])
    assert found["bare forward, full batch"].value == pytest.approx(100.0)
    assert found["of the bare forward"].value == pytest.approx(0.85)
    assert found["added to bare forward and decode"].value == pytest.approx(1.0)


def test_the_median_decides_and_the_spread_is_shown() -> None:
    bares = [Bares(100.0, 10.0)] * 4
    found = figures(bares, [a_round(single_p50_ms=ms) for ms in (12.5, 13.0, 30.0)])["added to bare forward and decode"]
    assert (found.low, found.value, found.high) == pytest.approx((0.5, 1.0, 18.0))
    assert found.met


@pytest.mark.parametrize(("service_img_s", "met"), [(85.0, True), (84.0, False)])
def test_a_floor_is_met_from_above(service_img_s: float, met: bool) -> None:
    found = figures([Bares(100.0, 10.0)] * 2, [a_round(service_img_s)])
    assert found["of the bare forward"].met is met


def test_memory_growth_in_percent() -> None:
    assert memory_figure({"1000": 100.0, "10000": 104.0}).met
    grown = memory_figure({"1000": 100.0, "10000": 106.0})
    assert grown.value == pytest.approx(6.0)
    assert grown.met is False


def test_start_targets() -> None:
    assert [figure.met for figure in start_figures(61.0, [5.0, 20.0, 6.0])] == [False, True]


def test_one_busy_round_is_not_quiet() -> None:
    assert is_quiet([a_round(), a_round(others_cpu_percent=3.0)])
    assert not is_quiet([a_round(), a_round(others_cpu_percent=40.0)])


def test_what_was_measured_beside_others_gets_no_pass() -> None:
    met = Figure("x", "ms", 1.0, 1.0, 1.0, target=2.0)
    assert list(figures_table([met]).columns[-1].cells) == ["[green]PASS[/]"]
    assert list(figures_table([met], quiet=False).columns[-1].cells) == ["[yellow]void[/]"]


def test_figures_without_a_target_have_no_verdict() -> None:
    assert Figure("x", "ms", 1.0, 1.0, 1.0).met is None
    assert figures_table([Figure("x", "ms", 1.0, 1.0, 1.0)]).row_count == 1
