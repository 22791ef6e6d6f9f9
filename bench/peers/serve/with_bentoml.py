"""The model behind BentoML: `python -m bentoml serve bench.peers.serve.with_bentoml:Classify`.

- https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html: `batchable`, `max_batch_size`, `max_latency_ms`
- https://docs.bentoml.com/en/latest/build-with-bentoml/iotypes.html: files come as multipart forms and are given as
  paths; what is batchable takes a list, so each call sends a list of one file
- https://docs.bentoml.com/en/latest/build-with-bentoml/parallelize-requests.html: `workers`
- https://docs.bentoml.com/en/latest/reference/bentoml/configurations.html: a line a call in the log is left out
"""

import asyncio
from pathlib import Path

import bentoml

from bench.peers.classifier import Answer, OwnedClassifier
from bench.peers.setup import Setup

SETUP = Setup.from_environment()
# Calls that would take longer are refused: well above what is measured.
_MAX_LATENCY_MS = 30_000


@bentoml.service(workers=SETUP.layout["workers"], traffic={"timeout": 60}, logging={"access": {"enabled": False}})
class Classify:
    """Runs in each worker."""

    def __init__(self) -> None:
        self._classifier = OwnedClassifier(SETUP)

    @bentoml.api(batchable=True, max_batch_size=SETUP.batch_size, max_latency_ms=_MAX_LATENCY_MS)
    async def classify(self, images: list[Path]) -> list[Answer]:
        """A batch of files."""
        files = [path.read_bytes() for path in images]
        pixels = await asyncio.to_thread(self._classifier.decoder.decode_all, files)
        return await asyncio.wrap_future(self._classifier.submit(pixels))
