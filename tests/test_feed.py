"""The direct feed on CPU lanes of a tiny model: its bookkeeping, not its speed."""

import json
from dataclasses import replace

import pytest
import torch

from bench import feed as feed_tool
from bench.feed_ceiling import ceiling
from bench.feed_engine import measure_engine
from bench.feed_lanes import Feed, _refill, lanes_ms, profile_graph, replay_ms
from pipeline.canvas import identity_geometry
from pipeline.lanes import build_lanes
from pipeline.model import Model, load_model
from pipeline.options import Options
from tests.test_ladder import TINY

OPTIONS = Options(batch_size=2, slots=8, threads=1, decode_threads=1, compile=False)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TINY)


@pytest.fixture(scope="module")
def feed(model: Model) -> Feed:
    return Feed(model, OPTIONS, build_lanes(model, OPTIONS))


def test_a_lane_can_be_fed_the_same_batch_again(feed: Feed) -> None:
    refilled = _refill(feed, lanes=1)[0]
    with torch.inference_mode():
        refilled.run()
        first = refilled.lane.results()[0].copy()
        refilled.run()
    assert (refilled.lane.results()[0] == first).all()
    assert first.shape == (2, 50)


def test_the_canvas_decides_who_resizes(model: Model) -> None:
    small = Feed(model, OPTIONS, build_lanes(model, OPTIONS))
    assert small.geometry == identity_geometry(model.preprocess)
    larger = replace(OPTIONS, canvas=300)
    assert Feed(model, larger, build_lanes(model, larger)).geometry.y.scale == pytest.approx(300 / 256)


def test_timings_are_of_one_batch(feed: Feed) -> None:
    with torch.inference_mode():
        assert 0 < replay_ms(feed, 1, 4) < 1000
        assert 0 < lanes_ms(feed, 1, 4) < 1000
        assert profile_graph(feed, 3).batches == 3


def test_the_engine_is_kept_full(feed: Feed) -> None:
    served = measure_engine(feed, lanes=1, seconds=0.3)
    assert served.in_flight == 6
    assert served.batch_fill == pytest.approx(2, abs=0.3)
    assert served.img_s > 0
    assert 0 < served.idle_p50_ms < 1000
    assert served.gpu_busy is None


def test_the_ceiling_leaves_the_model_as_it_was(model: Model) -> None:
    before = model.module.state_dict()["layers.0.weight"].clone()
    found = ceiling(model, replace(OPTIONS, dtype="bf16"), [2])
    assert found.keys() == {"2 by arithmetic", "2 by memory"}
    assert min(found.values()) > 0
    assert torch.equal(model.module.state_dict()["layers.0.weight"], before)


def test_settings_of_the_server_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["--lanes", "1", "--batch-sizes", "2", "--batches", "2", "--seconds", "0.2", "--profile-batches", "2"]
    servers = ["--model", TINY, "--device", "cpu", "--no-compile", "--canvas", "240", "--threads", "1"]
    assert feed_tool.main([*own, "--no-record", *servers]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["bench"] == "feed"
    assert record["conditions"]["server_args"] == servers
    assert "240 pixels" in record["conditions"]["input"]
    assert record["results"]["img_s"].keys() == {"1"}
    assert record["results"]["rows"][0]["served"]["img_s"] > 0
    assert record["results"]["batch"]["2"]["execution"].startswith("eager")


def test_a_model_that_cannot_be_had_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert feed_tool.main(["--model", "no-such-model", "--device", "cpu", "--no-record"]) == 1
    assert "no measurement" in capsys.readouterr().out


def test_what_the_server_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        feed_tool.main(["--lanes", "1", "--dtype", "fp12"])
    assert "fp12" in capsys.readouterr().err
