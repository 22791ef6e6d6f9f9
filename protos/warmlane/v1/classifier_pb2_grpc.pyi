# Written by hand: protoc makes no types for this file. Each method serves both grpc and grpc.aio, hence the Any.
# ruff: noqa: N802
from typing import Any

import grpc

from warmlane.v1 import classifier_pb2 as pb

class ClassifierStub:
    Classify: Any
    ClassifyBatch: Any
    ClassifyStream: Any
    GetModel: Any
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...

class ClassifierServicer:
    def Classify(self, request: pb.ClassifyRequest, context: Any) -> Any: ...
    def ClassifyBatch(self, request: pb.ClassifyBatchRequest, context: Any) -> Any: ...
    def ClassifyStream(self, request_iterator: Any, context: Any) -> Any: ...
    def GetModel(self, request: pb.GetModelRequest, context: Any) -> Any: ...

def add_ClassifierServicer_to_server(servicer: ClassifierServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
