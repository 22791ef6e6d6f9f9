"""The model behind Ray Serve.

- https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html: `serve.batch`
- https://docs.ray.io/en/latest/serve/configure-serve-deployment.html: `num_replicas`, `max_ongoing_requests`
- https://docs.ray.io/en/master/serve/advanced-guides/asyncio-best-practices.html: work that blocks goes to threads
- https://docs.ray.io/en/master/kuberay/user-guides/serve-high-throughput.html: RAY_SERVE_THROUGHPUT_OPTIMIZED and
  RAY_SERVE_ENABLE_HA_PROXY (set in `bench.peers.catalog`, as they must be there before the import)

The HTTP port is on the loopback address; Ray opens ports of its own between its processes.
"""

import asyncio
import signal
import threading

import ray
from ray import serve
from starlette.requests import Request
from torch import Tensor

from bench.peers.classifier import Answer, OwnedClassifier
from bench.peers.setup import Setup

_ONGOING_BATCHES = 8
SETUP = Setup.from_environment()


@serve.deployment(
    num_replicas=SETUP.layout["workers"],
    max_ongoing_requests=_ONGOING_BATCHES * SETUP.batch_size,
    ray_actor_options={"num_cpus": 1, "num_gpus": 1 / SETUP.layout["workers"] if SETUP.on_gpu else 0},
)
class Replica:
    """Takes HTTP requests, decodes on threads, and classifies what has gathered."""

    def __init__(self) -> None:
        self._classifier = OwnedClassifier(SETUP)

    async def __call__(self, request: Request) -> Answer:
        """One JPEG."""
        pixels = await asyncio.to_thread(self._classifier.decoder.decode, await request.body())
        answer: Answer = await self.classify(pixels)
        return answer

    @serve.batch(max_batch_size=SETUP.batch_size, batch_wait_timeout_s=SETUP.batch_wait_ms / 1e3)
    async def classify(self, images: list[Tensor]) -> list[Answer]:
        """One forward."""
        return await asyncio.wrap_future(self._classifier.submit(images))


def main() -> None:
    """Serve until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    workers = SETUP.layout["workers"]
    # What Ray counts for placement; no process is held to it.
    ray.init(include_dashboard=False, num_cpus=workers + 2, _node_ip_address="127.0.0.1", log_to_driver=False)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    serve.start(http_options={"host": "127.0.0.1", "port": SETUP.port})
    serve.run(Replica.bind())  # type: ignore[attr-defined]
    stopping.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
