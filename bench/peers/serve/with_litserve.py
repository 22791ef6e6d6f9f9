"""The model behind LitServe.

- https://lightning.ai/docs/litserve/features/batching: `max_batch_size` and `batch_timeout` of the LitAPI
- https://lightning.ai/docs/litserve/features/request-response-format: type hints say what is decoded and encoded; a
  body of plain bytes is FastAPI's `Body`, so that no base64 is needed
- https://lightning.ai/docs/litserve/api-reference/litserver: `workers_per_device`, `num_api_servers`,
  `fast_queue` (ZeroMQ)
"""

from collections.abc import Sequence
from typing import Annotated

import litserve
from fastapi import Body
from torch import Tensor

from bench.peers.classifier import Answer, Classifier
from bench.peers.setup import Setup


class Api(litserve.LitAPI):
    """Runs in each worker. A worker decodes the images of its batch one after the other, then classifies them."""

    def setup(self, device: str) -> None:
        """Load and compile."""
        self._classifier = Classifier(Setup.from_environment())

    def decode_request(self, request: Annotated[bytes, Body()]) -> Tensor:
        """JPEG to pixels."""
        return self._classifier.decoder.decode(request)

    def batch(self, inputs: list[Tensor]) -> list[Tensor]:
        """Images of different sizes cannot be stacked here."""
        return inputs

    def predict(self, images: Sequence[Tensor]) -> list[Answer]:
        """One forward."""
        return self._classifier.classify(images)

    def unbatch(self, output: list[Answer]) -> list[Answer]:
        """It is a list already."""
        return output

    def encode_response(self, output: Answer) -> Answer:
        """FastAPI makes JSON of it."""
        return output


def main() -> None:
    """Serve until SIGTERM."""
    setup = Setup.from_environment()
    api = Api(max_batch_size=setup.batch_size, batch_timeout=setup.batch_wait_ms / 1e3)
    server = litserve.LitServer(
        api,
        accelerator=setup.device,
        devices=1,
        workers_per_device=setup.layout["workers"],
        fast_queue=bool(setup.layout["fast_queue"]),
    )
    server.run(
        host="127.0.0.1",
        port=setup.port,
        num_api_servers=setup.layout["api_servers"],
        log_level="warning",
        generate_client_file=False,
    )


if __name__ == "__main__":
    main()
