"""Switches off what makes the host wait for the device, in code that cannot be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WAITS = frozenset(
    [
        *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy),
        *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    ]
)


class PassThrough(TorchFunctionMode):
    """Changes nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class SyncsOff(TorchFunctionMode):
    """Answers each wait of a loop's body with what the same wait gave the first time.

    So the control flow stays as it was, and a batch differs in nothing but the waiting.

    Args:
        body: one batch.
        device_type: waits for tensors on such devices are meant.
    """

    def __init__(self, body: Callable[[], object], device_type: str = "cuda") -> None:
        super().__init__()
        self._body = body
        self._device_type = device_type
        self._answers: list[object] = []
        self._next = 0
        self._is_learning = False

    @property
    def count(self) -> int:
        """Waits of one batch."""
        return len(self._answers)

    def learn(self) -> None:
        """Run one batch and keep what its waits gave."""
        self._is_learning = True
        with self:
            self._body()
        self._is_learning = False

    def run(self) -> object:
        """One batch; without waits inside a `with` block of this object."""
        self._next = 0
        return self._body()

    def __enter__(self) -> Self:
        self._patch = mock.patch.object(torch.cuda, "synchronize", self._synchronize)
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call, unused-ignore]
        self._patch.stop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in _WAITS or args[0].device.type != self._device_type:
            return func(*args, **(kwargs or {}))
        return self._answer(lambda: func(*args, **(kwargs or {})))

    def _synchronize(self, device: object = None) -> None:
        self._answer(lambda: None)

    def _answer(self, ask: Callable[[], object]) -> object:
        if self._is_learning:
            self._answers.append(ask())
            return self._answers[-1]
        self._next += 1
        # A body that waits more often than it did at first has taken another path: it gets true answers there.
        return self._answers[self._next - 1] if self._next <= len(self._answers) else ask()
