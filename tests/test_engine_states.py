"""What frontends hear of the engines."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pipeline.info import ModelInfo
from pipeline.preprocess import Preprocess
from pipeline.wire import EngineId
from server.engine_states import EngineStates, decoder_of_all
from server.plan import Warm
from server.shared_memory import SharedMemory
from server.startup import StartError

ONE, TWO = EngineId(0, 0), EngineId(1, 0)
INFO = ModelInfo(
    name="numbers",
    version="0",
    labels=("the number",),
    preprocess=Preprocess(resize=8, crop=(8, 8)),
    activation="softmax",
    device="cpu",
    dtype="fp32",
    batch_size=4,
    lanes=1,
    canvas=8,
)
WARM = Warm("eager", "2 ms", "nvJPEG on 7 engines")


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    with closing(SharedMemory(frontends=1, engines=2, slots=4)) as memory:
        yield memory


@pytest.fixture
def engines(memory: SharedMemory) -> EngineStates:
    return EngineStates(memory, 2, is_strict=False)


def test_nothing_is_known_at_first(engines: EngineStates) -> None:
    news = engines.news()
    assert (news.info, news.layout, news.engines, news.is_serving) == (None, None, (), False)


def test_all_must_have_been_warm_once_and_then_one_is_enough(engines: EngineStates) -> None:
    engines.describe(INFO)
    engines.describe(INFO)
    engines.warm(TWO, WARM)
    assert not engines.news().is_serving
    engines.warm(ONE, WARM)
    news = engines.news()
    assert news.is_serving
    assert news.engines == (ONE, TWO)
    assert news.layout is not None
    assert news.info == replace(INFO, execution="eager", cost="2 ms", gpu_decode="nvJPEG on 7 engines")
    engines.forget(ONE)
    assert engines.news().is_serving
    assert ONE not in engines
    assert TWO in engines
    engines.forget(TWO)
    assert not engines.news().is_serving


def test_files_go_to_engines_only_while_all_that_are_warm_decode_them(engines: EngineStates) -> None:
    engines.describe(INFO)
    for engine, decoder in ((ONE, "nvJPEG"), (TWO, "")):
        engines.warm(engine, Warm("eager", "", decoder))
    news = engines.news()
    assert news.info is not None
    assert news.info.gpu_decode == ""
    engines.forget(TWO)
    news = engines.news()
    assert news.info is not None
    assert news.info.gpu_decode == "nvJPEG"
    assert decoder_of_all([]) == ""


@pytest.mark.parametrize("is_strict", [True, False])
def test_an_engine_that_recompiles(memory: SharedMemory, is_strict: bool) -> None:
    engines = EngineStates(memory, 1, is_strict=is_strict)
    engines.describe(INFO)
    engines.warm(ONE, WARM)
    engines.recompiled(ONE)
    assert engines.news().is_serving is not is_strict
    engines.forget(ONE)
    engines.warm(EngineId(0, 1), WARM)
    assert engines.news().is_serving


def test_an_engine_that_wants_other_slots(engines: EngineStates) -> None:
    engines.describe(INFO)
    with pytest.raises(StartError, match="canvases of 16 and 8"):
        engines.describe(replace(INFO, canvas=16))
