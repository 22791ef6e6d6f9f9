"""What runs in a process of `bench.metrics_cost`: a gRPC server that answers every image with the same words.

It prints where it listens, and goes on until it is killed.
"""

from typing import Any

import grpc
import uvloop

from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierServicer, add_ClassifierServicer_to_server

_MAX_MESSAGE_BYTES = 64 << 20


class SameWords(ClassifierServicer):
    """Looks at nothing."""

    async def Classify(  # noqa: N802
        self, request: pb.ClassifyRequest, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> pb.ClassifyResponse:
        """Five predictions."""
        predictions = [pb.Prediction(index=index, label="a label of some length", score=0.2) for index in range(5)]
        timings = pb.Timings(admission_ms=0.3, decode_ms=4.0, queue_ms=1.7, forward_ms=0.6, reply_ms=0.2)
        return pb.ClassifyResponse(
            predictions=predictions, timings=timings, model="none", request_id="0123456789abcdef"
        )


async def serve() -> None:
    """Listen, say where, answer."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)])
    add_ClassifierServicer_to_server(SameWords(), server)
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve())
