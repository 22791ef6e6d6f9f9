# Written by hand, as classifier_pb2_grpc.pyi is.
# ruff: noqa: N802
from typing import Any

import grpc

from warmlane.v1 import admin_pb2 as pb

class AdminStub:
    Profile: Any
    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ...

class AdminServicer:
    def Profile(self, request: pb.ProfileRequest, context: Any) -> Any: ...

def add_AdminServicer_to_server(servicer: AdminServicer, server: grpc.Server | grpc.aio.Server) -> None: ...
