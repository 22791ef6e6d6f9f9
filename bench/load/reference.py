"""What the files are to be answered with, found before the load starts.

For a server of our own: the files are decoded as the service decodes them, and go through torchvision v2's transforms
and the model in float32 on the CPU, one by one and in a process of its own. For a server that somebody else started,
whose weights are not known here: its own first answer to each file, asked for one after the other; the load is then
checked for answers that change and for those that go to the wrong caller, not for whether they are right.
"""

import importlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from bench.expected import Expected, expect, swaps_noticed, tolerance
from bench.mix import mix_images
from server.settings import parse
from warmlane.client import Client
from warmlane.errors import InvalidArgument

_SKIPPING = {"--skip-decode": "does not decode", "--null-engine": "computes nothing"}
_TOP_K = 20


@dataclass(frozen=True, slots=True)
class Reference:
    """What is expected.

    Attributes:
        answers: of each file, None for one that is refused; empty where nothing can be checked.
        source: where they come from, or why there are none, in a few words.
    """

    answers: tuple[Expected | None, ...]
    source: str

    @property
    def refused(self) -> int:
        """Files that are left out."""
        return sum(each is None for each in self.answers)

    @property
    def swaps_noticed(self) -> float:
        """See `bench.expected.swaps_noticed`."""
        return swaps_noticed(self.answers)


def own_reference(server_args: Sequence[str], mix: str) -> Reference:
    """Of the server that these settings start."""
    for flag, what in _SKIPPING.items():
        if flag in server_args:
            return Reference((), f"not checked: the server {what} ({flag})")
    if parse(server_args).weights == "none":
        # Seen of ResNet-50: one class in fp32, another in fp16, whatever the image.
        return Reference((), "not checked: random weights answer every image nearly alike (--weights none)")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as process:
        answers = process.submit(_compute, tuple(server_args), mix).result()
    return _reference(answers, "torchvision v2 and the model in float32 on the CPU")


def first_answers(target: str, mix: str, dtype: str) -> Reference:
    """Of a server that runs already.

    Raises:
        WarmlaneError: it does not answer.
    """
    answers: list[Expected | None] = []
    with Client(target) as client:
        for file in mix_images(mix):
            try:
                found = client.classify(file, top_k=_TOP_K).predictions
            except InvalidArgument:
                answers.append(None)
            else:
                answers.append(expect(((each.index, each.score) for each in found), tolerance(dtype)))
    return _reference(answers, "the service's own first answers, so that only changed or exchanged ones are found")


def _reference(answers: Sequence[Expected | None], source: str) -> Reference:
    if not any(answers):
        raise ValueError("none of the files is an image that the service takes")
    return Reference(tuple(answers), source)


def _compute(server_args: Sequence[str], mix: str) -> list[Expected | None]:
    """In the other process: its module is not imported here, so that who measures holds no torch."""
    found: list[Expected | None] = importlib.import_module("bench.load.reference_process").compute(server_args, mix)
    return found
