"""The model behind PyTriton, that is Triton Inference Server with its model in Python.

- https://triton-inference-server.github.io/pytriton/latest/binding_models/: `bind`, inputs of bytes, several callables
- https://triton-inference-server.github.io/pytriton/latest/reference/model_config/: `max_batch_size`, `DynamicBatcher`
- https://triton-inference-server.github.io/pytriton/latest/installation/: LD_LIBRARY_PATH (in `bench.peers.catalog`)
- https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html: batches are as
  large as what has gathered, without a delay, as recommended
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from bench.peers.classifier import TOP_K, OwnedClassifier
from bench.peers.setup import Setup
from bench.ports import free_port

MODEL = "classifier"


class Instance:
    """One of the callables that Triton hands batches to."""

    def __init__(self, classifier: OwnedClassifier) -> None:
        self._classifier = classifier

    @batch
    def __call__(self, image: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Files as objects of bytes, [n, 1], to classes [n, TOP_K] and probabilities [n, TOP_K]."""
        pixels = self._classifier.decoder.decode_all([row[0] for row in image])
        answers = self._classifier.submit(pixels).result()
        return {
            "indices": np.array([answer["indices"] for answer in answers], np.int32),
            "scores": np.array([answer["scores"] for answer in answers], np.float32),
        }


def main() -> None:
    """Serve until SIGTERM."""
    setup = Setup.from_environment()
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=free_port(),
        grpc_address="127.0.0.1",
        grpc_port=setup.port,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name=MODEL,
            infer_func=[Instance(OwnedClassifier(setup)) for _ in range(setup.layout["instances"])],
            inputs=[Tensor(name="image", dtype=np.bytes_, shape=(1,))],
            outputs=[
                Tensor(name="indices", dtype=np.int32, shape=(TOP_K,)),
                Tensor(name="scores", dtype=np.float32, shape=(TOP_K,)),
            ],
            config=ModelConfig(max_batch_size=setup.batch_size, batcher=DynamicBatcher()),
        )
        triton.serve()


if __name__ == "__main__":
    main()
