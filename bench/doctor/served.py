"""A running service as it tells of itself: what it serves, and a profile of its engine."""

import grpc
import torch

from bench.doctor.evidence import Served
from bench.doctor.subject import DTYPES, Subject, SubjectError, from_model
from pipeline.model import ModelError
from warmlane.client import Client
from warmlane.errors import WarmlaneError
from warmlane.v1 import admin_pb2 as pb
from warmlane.v1.admin_pb2_grpc import AdminStub

# To start CUDA's tracing, to gather the trace and to send it, beside the recording itself.
_AROUND_S = 120.0


class ProfileError(RuntimeError):
    """The service gave no profile; one line."""


def copy_of(served: Served) -> Subject:
    """The same model in this process, for experiments. Random weights, which run as fast as any.

    Raises:
        SubjectError: it cannot be had here.
    """
    device = torch.device("cuda" if served.on_gpu else "cpu")
    dtype = DTYPES.get(served.dtype, torch.float32)
    try:
        return from_model(served.model, "none", served.batch_size, dtype, device, served.preprocess)
    except (ModelError, RuntimeError) as error:
        raise SubjectError(f"a copy of {served.model}: {str(error).splitlines()[0]}") from None


def ask_model(target: str) -> Served:
    """What the service at "host:port" serves.

    Raises:
        SubjectError: it does not answer.
    """
    try:
        with Client(target) as client:
            told = client.model()
    except WarmlaneError as error:
        raise SubjectError(f"--target {target}: {error}") from None
    transform = told.preprocessing
    return Served(
        told.name,
        told.device,
        told.dtype,
        told.batch_size,
        told.execution,
        {
            "resize": transform.resize_shorter or (transform.resize_height, transform.resize_width),
            "crop": (transform.crop_height, transform.crop_width),
        },
    )


def fetch_profile(admin: str, batches: int, timeout_s: float) -> bytes:
    """Have the engine behind the admin port "host:port" profiled; see admin.proto for what comes back.

    Raises:
        ProfileError: it was refused, or nobody answers.
    """
    with grpc.insecure_channel(admin, [("grpc.max_receive_message_length", -1)]) as channel:
        try:
            request = pb.ProfileRequest(batches=batches, timeout_s=timeout_s)
            trace: bytes = AdminStub(channel).Profile(request, timeout=timeout_s + _AROUND_S).trace
        except grpc.RpcError as error:
            raise ProfileError(_one_line(admin, error)) from None
    return trace


def _one_line(admin: str, error: grpc.RpcError) -> str:
    assert isinstance(error, grpc.Call)
    told = f"profile: {admin} answers {error.code().name} ({str(error.details()).splitlines()[0]})"
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED):
        told += "; start the server with --admin-port, and the doctor on the same machine"
    return told
