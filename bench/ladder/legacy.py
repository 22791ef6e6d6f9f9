"""A legacy service as a process: `python -m bench.ladder.legacy --rung N --port 0`.

It speaks warmlane.v1 and grpc.health.v1, so that the load generator drives it as it drives the real one.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import torch
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bench.ladder.legacy_worker import Answer, LegacyWorker
from bench.ladder.mailbox import attend
from bench.ladder.rungs import habits_at
from pipeline.lanes import resolve_device
from pipeline.model import Model, load_model
from warmlane.v1 import classifier_pb2 as pb
from warmlane.v1.classifier_pb2_grpc import ClassifierServicer, add_ClassifierServicer_to_server

_HANDLER_THREADS = 64
_GRACE_S = 1.0
# A batch that searches algorithms for its shape can take much longer, and nobody waits for it any more.
_STOP_S = 3.0
_POLL_S = 0.2
_SEED = 0
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class LegacyServicer(ClassifierServicer):
    """Classify and GetModel, as far as the ladder needs them."""

    def __init__(self, worker: LegacyWorker, model: Model, info: pb.Model) -> None:
        self._worker = worker
        self._model = model
        self._info = info

    def Classify(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> pb.ClassifyResponse:  # noqa: N802
        """One image, one answer."""
        started = time.perf_counter()
        answer = self._worker.submit(request.image).result()
        total_ms = 1e3 * (time.perf_counter() - started)
        timings = pb.Timings(total_ms=total_ms, batch_fill=answer.batch_fill)
        return pb.ClassifyResponse(predictions=self._predictions(answer), timings=timings, model=self._model.name)

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:  # noqa: N802
        """What is served."""
        return self._info

    def _predictions(self, answer: Answer) -> list[pb.Prediction]:
        labels = self._model.labels
        best = zip(answer.indices, answer.scores, strict=True)
        return [pb.Prediction(index=index, label=labels[index], score=score) for index, score in best]


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; 0, or 1 if it could not warm up."""
    args = _parser().parse_args(argv)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    torch.manual_seed(_SEED)
    model = load_model(args.model, weights=args.weights)
    device = torch.device(resolve_device(args.device))
    worker = LegacyWorker(model, habits_at(args.rung), device, args.batch_size)
    server, checks, port = _serve(args.host, args.port, LegacyServicer(worker, model, _info(args, model, device)))
    print(f"listening on {args.host}:{port}", flush=True)
    attend()
    worker.start()
    worker.ready.result()
    checks.set("", _SERVING)
    # Woken now and then, to run the handler of a signal that was delivered to another thread.
    while not stopping.wait(_POLL_S):
        pass
    server.stop(_GRACE_S).wait(2 * _GRACE_S)
    worker.stop(_STOP_S)
    return 0


def _serve(host: str, port: int, servicer: LegacyServicer) -> tuple[grpc.Server, health.HealthServicer, int]:
    server = grpc.server(ThreadPoolExecutor(_HANDLER_THREADS))
    add_ClassifierServicer_to_server(servicer, server)
    checks = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    checks.set("", _NOT_SERVING)
    bound = server.add_insecure_port(f"{host}:{port}")
    server.start()
    return server, checks, bound


def _info(args: argparse.Namespace, model: Model, device: torch.device) -> pb.Model:
    return pb.Model(
        name=model.name,
        version=model.version,
        labels=model.labels,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        dtype="fp32",
        batch_size=args.batch_size,
        execution="eager" if habits_at(args.rung).eager else "compiled",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.ladder.legacy", description="A service as it should not be.")
    add = parser.add_argument
    add("--rung", type=int, required=True, help="how far it has been mended, 0 to 5")
    add("--model", default="efficientnet-lite0", help="as the server takes it")
    add("--weights", default="default", help="default, none (random), or the path of a state dict")
    add("--device", default="auto", help="auto, cpu or cuda:N")
    add("--batch-size", type=int, default=8, help="most images in a forward (default 8)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    return parser


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by way of the interpreter's own end, where daemon threads and CUDA graphs are torn down in no certain order.
    os._exit(code)
