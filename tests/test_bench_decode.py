"""What `make decode` and `make large` measure, on few and small files."""

import json

import pytest

from bench import large_images
from bench.decode import large, ways
from bench.mix import mix_images
from pipeline.headers import Limits
from pipeline.preprocess import Preprocess

# torchvision 0.29 wants torchcodec to be used.
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")

FILES = mix_images("small")[:2]


def test_every_way_is_measured_each_round() -> None:
    bare, missing = ways.bare_ways()
    assert {way.name for way in bare} | set(missing) == {"simplejpeg", "torchvision", "Pillow", "OpenCV", "torchcodec"}
    all_ways = [*bare, *ways.own_ways(Preprocess(), Limits())]
    rounds = list(ways.cpu_us(all_ways, FILES, 2))
    assert len(rounds) == 2
    for costs in rounds:
        assert list(costs) == [way.name for way in all_ways]
        assert all(100 < cost < 1e6 for cost in costs.values()), "microseconds"


def test_bare_ways_decode_the_whole_image() -> None:
    for way in ways.bare_ways()[0]:
        assert sorted(way.run(way.prepare(FILES[0])).shape) == [3, 375, 500], way.name


def test_a_change_beyond_the_tolerance_is_told() -> None:
    assert large.Change(largest=3.0, mean=0.2, probability=0.01, top1=1.0).is_tolerable
    assert not large.Change(largest=3.0, mean=0.2, probability=0.01, top1=0.8).is_tolerable
    assert not large.Change(largest=30.0, mean=0.2, probability=0.01, top1=1.0).is_tolerable


def test_large_images_beside_small_ones(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(large_images, "SIDE", 2500)
    assert large_images.main(["--count", "4", "--seconds", "0.5", "--no-record"]) == 0
    results = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["results"]
    assert results["large_outcomes"] == {"OK": 4}
    assert set(results["small_outcomes"]) == {"OK"}
    assert results["small_calls_beside"] > 0
    assert results["memory_peak_mib"] > 100
