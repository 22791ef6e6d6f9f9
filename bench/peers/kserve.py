"""The two messages of the KServe protocol that a Triton server is called with, as far as they are used.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/open_inference_grpc.proto
"""

import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

METHOD = "/inference.GRPCInferenceService/ModelInfer"
_PACKAGE = "warmlane.bench.kserve"


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Unknown fields are skipped, so a message need not have all that the protocol has."""
    one, many = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    file = descriptor_pb2.FileDescriptorProto(name="bench/peers/kserve.proto", package=_PACKAGE, syntax="proto3")
    tensor = file.message_type.add(name="Tensor")
    tensor.field.add(name="name", number=1, type=Field.TYPE_STRING, label=one)
    tensor.field.add(name="datatype", number=2, type=Field.TYPE_STRING, label=one)
    tensor.field.add(name="shape", number=3, type=Field.TYPE_INT64, label=many)
    request = file.message_type.add(name="Request")
    request.field.add(name="model_name", number=1, type=Field.TYPE_STRING, label=one)
    inputs = request.field.add(name="inputs", number=5, type=Field.TYPE_MESSAGE, label=many)
    inputs.type_name = f".{_PACKAGE}.Tensor"
    request.field.add(name="raw_input_contents", number=7, type=Field.TYPE_BYTES, label=many)
    response = file.message_type.add(name="Response")
    response.field.add(name="raw_output_contents", number=6, type=Field.TYPE_BYTES, label=many)
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())
_Request: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Request"))
_Response: Any = message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.Response"))


def request(model: str, file: bytes) -> bytes:
    """A call with one image: an input of one row with one object of bytes, led by its length."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1, 1]}
    raw = struct.pack("<I", len(file)) + file
    encoded: bytes = _Request(model_name=model, inputs=[tensor], raw_input_contents=[raw]).SerializeToString()
    return encoded


def top1(response: bytes) -> int:
    """The first class of the first output, int32."""
    (index,) = struct.unpack_from("<i", _Response.FromString(response).raw_output_contents[0])
    return int(index)
