"""What the machine could do at best: the forward, the decoder and the engine by themselves, in a process of their own.

The process holds what the server holds under the same settings, and is idle while it is not asked, so that its
measurements can alternate with those of a service. `bench.bare_process` is what runs there; it is not imported here, so
that who measures need not hold torch.
"""

import importlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Self

_PROCESS = "bench.bare_process"


class Bare:
    """The process. Close it, or use it in a `with` block. Its first answer waits until the model is compiled and warm.

    Args:
        args: command-line settings, as the server takes them.
        mix: the files whose pixels are used, a key of `bench.mix.MIXES`.
    """

    def __init__(self, args: Sequence[str], mix: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=_call, initargs=("build", tuple(args), mix))

    def batch_size(self) -> int:
        """Images of a full batch; 0 where the model would run on a GPU, which is not measured here."""
        return int(self._ask("batch_size"))

    def forward_ms(self, batch: int, seconds: float) -> float:
        """Median milliseconds of one forward of `batch` images whose pixels lie in memory."""
        return float(self._ask("forward_ms", batch, seconds))

    def engine_img_s(self, in_flight: int, seconds: float) -> float:
        """Images per second of batcher, lane and forward, fed with pixels that lie in their slots."""
        return float(self._ask("engine_img_s", in_flight, seconds))

    def decode_ms(self, seconds: float) -> float:
        """Mean milliseconds of one thread per image: header, decode, and the window into the slot."""
        return float(self._ask("decode_ms", seconds))

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, name: str, *args: object) -> Any:
        return self._pool.submit(_call, name, *args).result()


def _call(name: str, *args: object) -> Any:
    return getattr(importlib.import_module(_PROCESS), name)(*args)
