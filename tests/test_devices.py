"""Which device a setting means, and what is said where there is none such."""

import pytest
import torch

from pipeline.lanes import resolve_device
from pipeline.model import ModelError


@pytest.mark.parametrize(
    ("gpus", "words"), [(0, "can be auto, cpu; no GPU is found$"), (2, "auto, cpu, or cuda:N with N below 2$")]
)
@pytest.mark.parametrize("device", ["cuda:7", "gpu", "cuda:-1"])
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, words: str) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ModelError, match=words):
        resolve_device(device)
