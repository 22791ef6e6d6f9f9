from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ProfileRequest(_message.Message):
    __slots__ = ("batches", "timeout_s")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    batches: int
    timeout_s: float
    def __init__(self, batches: _Optional[int] = ..., timeout_s: _Optional[float] = ...) -> None: ...

class ProfileResponse(_message.Message):
    __slots__ = ("trace",)
    TRACE_FIELD_NUMBER: _ClassVar[int]
    trace: bytes
    def __init__(self, trace: _Optional[bytes] = ...) -> None: ...
