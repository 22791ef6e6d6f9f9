"""Fixtures that several test modules share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from prometheus_client import REGISTRY
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from pipeline.model import Model, load_model

PHOTOGRAPHS = Path(__file__).parent.parent / "bench" / "images"

Counted = Callable[[], float]


@pytest.fixture(autouse=True, scope="session")
def inductor_cache() -> Iterator[Path]:
    """One folder for what inductor keeps, such as compiled headers: ten seconds for each that begins empty.

    Without it, the temporary folder of the first server in this process would be everybody's, deleted or not.
    """
    with pytest.MonkeyPatch.context() as patch:
        folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For small models and products: on a shared machine, threads waiting for each other take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def default_model() -> Model:
    """EfficientNet-Lite0 with its real weights. Shared: nobody may change its layers."""
    return load_model()


@pytest.fixture(scope="session")
def photographs() -> dict[str, NDArray[np.uint8]]:
    """The sample photographs by name, uint8 [H, W, 3]."""
    photographs = {}
    for path in sorted(PHOTOGRAPHS.glob("*.jpg")):
        with Image.open(path) as image:
            photographs[path.stem] = np.array(image.convert("RGB"))
    assert photographs, f"no photographs in {PHOTOGRAPHS}"
    return photographs


@pytest.fixture
def dropped() -> Callable[[str, str], Counted]:
    """`dropped(stage, reason)` is a function that says how many requests were dropped since it was made."""

    def since(stage: str, reason: str) -> Counted:
        def value() -> float:
            return REGISTRY.get_sample_value("warmlane_dropped_total", {"stage": stage, "reason": reason}) or 0.0

        before = value()
        return lambda: value() - before

    return since
