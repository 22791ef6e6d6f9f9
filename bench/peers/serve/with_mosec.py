"""The model behind mosec.

- https://mosecorg.github.io/mosec/reference/interface.html: stages by `append_worker`, their `num`, `max_batch_size`
  and `max_wait_time`; `deserialize` for bodies that are not JSON
- https://mosecorg.github.io/mosec/examples/pytorch.html: a stage of processes that decode before the one that infers
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mosec import Server, Worker
from numpy.typing import NDArray

from bench.peers.classifier import Answer, Classifier, Decoder
from bench.peers.setup import Setup

Pixels = NDArray[np.uint8]


class Decode(Worker):
    """Decodes and resizes on one core."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        self._decoder = Decoder(Setup.from_environment())

    def deserialize(self, data: bytes) -> bytes:
        """The body is the JPEG."""
        return data

    def forward(self, data: bytes) -> Pixels:
        """JPEG to pixels."""
        pixels: Pixels = self._decoder.decode(data).numpy()
        return pixels


class Infer(Worker):
    """Classifies a batch of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self._classifier = Classifier(Setup.from_environment())

    def forward(self, data: Sequence[Pixels]) -> list[Answer]:
        """One forward."""
        return self._classifier.classify([torch.from_numpy(pixels) for pixels in data])


class DecodeAndInfer(Infer):
    """Both in one process."""

    def deserialize(self, data: bytes) -> bytes:
        """The body is the JPEG."""
        return data

    def forward(self, data: Sequence[Any]) -> list[Answer]:
        """JPEGs to answers."""
        return self._classifier.classify(self._classifier.decoder.decode_all(data))


def main() -> None:
    """Serve until SIGTERM; mosec takes address and port from the command line."""
    setup = Setup.from_environment()
    server = Server()
    decoders, workers = setup.layout["decode_processes"], setup.layout["workers"]
    batch = {"max_batch_size": setup.batch_size, "max_wait_time": setup.batch_wait_ms}
    if decoders:
        server.append_worker(Decode, num=decoders)
        server.append_worker(Infer, num=workers, **batch)
    else:
        server.append_worker(DecodeAndInfer, num=workers, **batch)
    server.run()


if __name__ == "__main__":
    main()
