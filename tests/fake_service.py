"""A server whose answers the first word of an image chooses. What passes against it holds for the client and the wire:
real sockets, real statuses, real metadata. It proves nothing about decoding, models or admission.

    b"cat ..."              CAT
    b"fail NOT_FOUND ..."   that status, saying "as asked"
    b"busy 20 2 ..."        RESOURCE_EXHAUSTED with 20 ms of pushback for the first 2 calls, then CAT
    b"full ..."             RESOURCE_EXHAUSTED without pushback
    b"slow ..."             CAT, after a second or when the call is given up

A stream is answered in pairs, the second before the first.
"""
# ruff: noqa: N802

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1 import classifier_pb2_grpc as pb_grpc

Status = tuple[grpc.StatusCode, str, int | None]

CAT = pb.ClassifyResponse(
    predictions=[
        pb.Prediction(index=281, label="tabby cat", score=0.8213),
        pb.Prediction(index=282, label="tiger cat", score=0.101),
        pb.Prediction(index=7, label="cock", score=0.004),
    ],
    timings=pb.Timings(
        admission_ms=0.1,
        decode_ms=1.25,
        queue_ms=0.05,
        transfer_ms=0.11,
        forward_ms=0.62,
        reply_ms=0.2,
        total_ms=2.33,
        batch_fill=3,
    ),
    model="fakenet",
    model_version="sha256:0123456789ab",
)
EXPLANATION = pb.Explanation(
    format="JPEG",
    width=500,
    height=375,
    orientation=6,
    conversions=["converted CMYK to RGB", "end marker missing"],
    decoder="libjpeg-turbo",
)
MODEL = pb.Model(
    name="fakenet",
    version="sha256:0123456789ab",
    labels=["tench", "goldfish", "great white shark", "tiger shark"],
    limits=pb.Limits(
        max_image_bytes=16 * 2**20,
        max_image_pixels=100_000_000,
        max_image_frames=1000,
        max_batch_images=64,
        stream_window=32,
    ),
    preprocessing=pb.Preprocessing(
        resize_shorter=256,
        crop_height=224,
        crop_width=224,
        interpolation="bilinear",
        mean=[0.485, 0.456, 0.406],
        std=[0.229, 0.224, 0.225],
    ),
    device="cpu",
    batch_size=8,
    activation="softmax",
    execution="eager: no GPU",
    versions={"torch": "2.11.0", "python": "3.11.7"},
    dtype="float32",
)


class FakeClassifier(pb_grpc.ClassifierServicer):
    """Counts the calls, and keeps each one's peer (a connection) and request id."""

    def __init__(self) -> None:
        self.peers: list[str] = []
        self.request_ids: list[str] = []
        self.requests: list[pb.ClassifyRequest] = []

    def Classify(self, request: pb.ClassifyRequest, context: Any) -> pb.ClassifyResponse:
        call_id = self._enter(context)
        self.requests.append(request)
        status = self._status(request.image)
        if status is not None:
            abort(context, *status)
        if request.image.startswith(b"slow"):
            wait_for_end(context)
        return answer(request, call_id)

    def ClassifyBatch(self, request: pb.ClassifyBatchRequest, context: Any) -> pb.ClassifyBatchResponse:
        call_id = self._enter(context)
        results = [self._result(item, f"{call_id}/{number}") for number, item in enumerate(request.requests)]
        return pb.ClassifyBatchResponse(results=results)

    def ClassifyStream(self, requests: Iterator[pb.ClassifyStreamRequest], context: Any) -> Iterator[Any]:
        call_id = self._enter(context)
        for first in requests:
            second = next(requests, None)
            for message in (second, first) if second else (first,):
                if message.request.image.startswith(b"abort"):
                    abort(context, grpc.StatusCode.UNAVAILABLE, "draining")
                result = self._result(message.request, f"{call_id}/{message.id}")
                yield pb.ClassifyStreamResponse(id=message.id, result=result)

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.Model:
        self._enter(context)
        if request.model not in ("", "fakenet"):
            abort(context, grpc.StatusCode.NOT_FOUND, f"no model {request.model!r}")
        return MODEL

    def _enter(self, context: Any) -> str:
        call_id = str(dict(context.invocation_metadata()).get("x-request-id", "made-here"))
        context.set_trailing_metadata((("x-request-id", call_id),))
        self.peers.append(context.peer())
        self.request_ids.append(call_id)
        return call_id

    def _status(self, image: bytes) -> Status | None:
        match image.decode().split():
            case ["fail", name, *_]:
                return grpc.StatusCode[name], "as asked", None
            case ["busy", pushback_ms, times, *_] if len(self.peers) <= int(times):
                return grpc.StatusCode.RESOURCE_EXHAUSTED, "full", int(pushback_ms)
            case ["full", *_]:
                return grpc.StatusCode.RESOURCE_EXHAUSTED, "full", None
        return None

    def _result(self, request: pb.ClassifyRequest, image_id: str) -> pb.ClassifyResult:
        status = self._status(request.image)
        if status is None:
            return pb.ClassifyResult(response=answer(request, image_id))
        return pb.ClassifyResult(error=item_error(*status, image_id))


def answer(request: pb.ClassifyRequest, request_id: str) -> pb.ClassifyResponse:
    response = pb.ClassifyResponse(request_id=request_id)
    response.MergeFrom(CAT)
    del response.predictions[request.top_k or 5 :]
    if request.explain:
        response.explanation.CopyFrom(EXPLANATION)
    return response


def abort(context: Any, code: grpc.StatusCode, details: str, pushback_ms: int | None = None) -> None:
    if pushback_ms is not None:
        pushback = ("grpc-retry-pushback-ms", str(pushback_ms))
        context.set_trailing_metadata((*context.trailing_metadata(), pushback))
    context.abort(code, details)


def item_error(code: grpc.StatusCode, details: str, pushback_ms: int | None, image_id: str) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=details)
    packed = AnyMessage()
    packed.Pack(error_details_pb2.RequestInfo(request_id=image_id))
    status.details.append(packed)
    if pushback_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(pushback_ms)
        packed.Pack(retry)
        status.details.append(packed)
    return status


def wait_for_end(context: Any) -> None:
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait(1)


@contextmanager
def serving(servicer: FakeClassifier, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    """The target of a running server: SERVING under "", NOT_SERVING under "cold"."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 64 * 2**20)])
    states = health.HealthServicer()
    states.set("", health_pb2.HealthCheckResponse.SERVING)
    states.set("cold", health_pb2.HealthCheckResponse.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(states, server)
    pb_grpc.add_ClassifierServicer_to_server(servicer, server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextmanager
def nobody_listening() -> Iterator[str]:
    """A target that refuses connections: a bound port that never listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
