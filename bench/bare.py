"""What the machine could do at best: the forward, the decoder and the engine by themselves.

Forward and decoder share a process, the engine has one of its own. Each holds what the server holds under the same
settings, and is idle while it is not asked, so that measurements can alternate with those of a service.
`bench.bare_process` is what runs there; it is not imported here, so that who measures need not hold torch.
"""

import importlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Self

_PROCESS = "bench.bare_process"


class Bare:
    """The processes. Close them, or use them in a `with` block. First answers wait for a warm model.

    Args:
        args: command-line settings, as the server takes them.
        mix: the files whose pixels are used, a key of `bench.mix.MIXES`.
    """

    def __init__(self, args: Sequence[str], mix: str) -> None:
        self._forward = _process("build_forward", tuple(args), mix)
        self._engine = _process("build_engine", tuple(args), mix)

    def batch_size(self) -> int:
        """Images of a full batch; 0 where the model would run on a GPU, which is not measured here."""
        return int(_ask(self._forward, "batch_size"))

    def forward_ms(self, batch: int, seconds: float) -> float:
        """Median milliseconds of one forward of `batch` images whose pixels lie in memory."""
        return float(_ask(self._forward, "forward_ms", batch, seconds))

    def engine_img_s(self, in_flight: int, seconds: float) -> float:
        """Images per second of batcher, lane and forward, fed with pixels that lie in their slots."""
        return float(_ask(self._engine, "engine_img_s", in_flight, seconds))

    def decode_ms(self, seconds: float) -> float:
        """Mean milliseconds of one thread per image: header, decode, and the window into the slot."""
        return float(_ask(self._forward, "decode_ms", seconds))

    def close(self) -> None:
        """End the processes."""
        for pool in (self._forward, self._engine):
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _process(build: str, args: tuple[str, ...], mix: str) -> ProcessPoolExecutor:
    """Starts when it is first asked something."""
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_call, initargs=(build, args, mix))


def _ask(process: ProcessPoolExecutor, name: str, *args: object) -> Any:
    return process.submit(_call, name, *args).result()


def _call(name: str, *args: object) -> Any:
    return getattr(importlib.import_module(_PROCESS), name)(*args)
