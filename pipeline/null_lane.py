"""A lane that computes nothing, to measure everything around the model."""

import numpy as np
from numpy.typing import NDArray

from pipeline.request import Batch


class NullLane:
    """Answers each image with the same scores at once.

    Args:
        count: scores an image, the first classes in their order.
    """

    def __init__(self, batch_size: int, count: int) -> None:
        scores = np.linspace(1.0, 0.0, count, dtype=np.float32)
        self._scores = np.tile(scores / scores.sum(), (batch_size, 1))
        self._indices = np.tile(np.arange(count, dtype=np.int32), (batch_size, 1))

    def start(self, batch: Batch) -> None:
        """Give the slots back."""
        batch.stamp("forward_start")
        for request in batch.requests:
            request.release_slot()
        batch.stamp("forward_end")

    def run_example(self) -> None:
        """See `Lane.run_example`."""

    def done(self) -> bool:
        """Always."""
        return True

    def results(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """See `Lane.results`."""
        return self._scores, self._indices
