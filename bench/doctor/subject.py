"""What is examined: a model with a batch of its input on the device, or a loop of the user's own."""

import copy
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.model import load_model

Run = Callable[[], object]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# A median of five: one repeat may meet another program on the machine.
_REPEATS = 5
_TURNS = 3
# Taken before an experiment replaces it in torch.cuda.
_synchronize = torch.cuda.synchronize


class SubjectError(ValueError):
    """There is nothing to examine under the name that was given. One line."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model and one batch for it, both on the device, in one dtype."""

    module: nn.Module
    batch: Tensor  # [B, *shape]

    def run(self) -> object:
        """One forward, not waited for."""
        return self.module(self.batch)

    def copied(self, dtype: torch.dtype | None = None) -> "Subject":
        """The same on a copy of the model, which experiments may change."""
        return Subject(copy.deepcopy(self.module).to(dtype=dtype), self.batch.to(dtype=dtype, copy=True))


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def from_factory(name: str, batch_size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Subject:
    """The module that `package.module:factory` returns, with random input.

    Raises:
        SubjectError: no such factory, or it returns no module.
    """
    module = resolve(name)()
    if not isinstance(module, nn.Module):
        raise SubjectError(f"{name} returned a {type(module).__name__}, not an nn.Module")
    module = module.eval().requires_grad_(False).to(device(), dtype)
    return Subject(module, torch.rand(batch_size, *shape, device=device(), dtype=dtype))


def from_model(
    name: str,
    weights: str,
    batch_size: int,
    dtype: torch.dtype,
    on: torch.device | None = None,
    preprocess: dict[str, Any] | None = None,
) -> Subject:
    """A model by the name that the server takes, with random input of the size of its crop.

    Args:
        on: where; the GPU if there is one.
        preprocess: fields of `Preprocess` to replace.

    Raises:
        pipeline.model.ModelError: see `load_model`.
    """
    on = on or device()
    model = load_model(name, weights=weights, overrides=preprocess)
    batch = torch.rand(batch_size, 3, *model.preprocess.crop, device=on, dtype=dtype)
    return Subject(model.module.to(on, dtype), batch)


def resolve(name: str) -> Callable[[], object]:
    """The callable behind `package.module:name`."""
    module_name, _, attribute = name.partition(":")
    try:
        found: Callable[[], object] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SubjectError(f"{name}: {error}; expected package.module:callable") from error
    return found


def ms_per_batch(run: Run, seconds: float = 1.0) -> float:
    """Median wall milliseconds of a run, many issued one after the other and waited for at the end."""
    for _ in range(3):
        run()
    once_s = max(1e-6, timed_s(run, 3) / 3)
    count = max(1, int(seconds / _REPEATS / once_s))
    return median(timed_s(run, count) for _ in range(_REPEATS)) * 1e3 / count


def compare_ms(before: Run, after: Run, seconds: float = 1.0) -> tuple[float, float]:
    """`ms_per_batch` of two, by turns, so that a busy moment of the machine hits both."""
    pairs = [(ms_per_batch(before, seconds / _TURNS), ms_per_batch(after, seconds / _TURNS)) for _ in range(_TURNS)]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def timed_s(run: Run, count: int = 1) -> float:
    """Wall seconds of `count` runs, the device's work included."""
    wait()
    started = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return time.perf_counter() - started


def wait() -> None:
    """Until the device has done all it was given."""
    if torch.cuda.is_available():
        _synchronize()
