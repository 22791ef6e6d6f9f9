from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClassifyRequest(_message.Message):
    __slots__ = ("image", "top_k", "explain", "model")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    image: bytes
    top_k: int
    explain: bool
    model: str
    def __init__(self, image: _Optional[bytes] = ..., top_k: _Optional[int] = ..., explain: bool = ..., model: _Optional[str] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("predictions", "timings", "explanation", "model", "model_version", "request_id")
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    timings: Timings
    explanation: Explanation
    model: str
    model_version: str
    request_id: str
    def __init__(self, predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., explanation: _Optional[_Union[Explanation, _Mapping]] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., request_id: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("index", "label", "score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    label: str
    score: float
    def __init__(self, index: _Optional[int] = ..., label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("admission_ms", "decode_ms", "queue_ms", "transfer_ms", "forward_ms", "reply_ms", "total_ms", "batch_fill")
    ADMISSION_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_MS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_MS_FIELD_NUMBER: _ClassVar[int]
    REPLY_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FILL_FIELD_NUMBER: _ClassVar[int]
    admission_ms: float
    decode_ms: float
    queue_ms: float
    transfer_ms: float
    forward_ms: float
    reply_ms: float
    total_ms: float
    batch_fill: int
    def __init__(self, admission_ms: _Optional[float] = ..., decode_ms: _Optional[float] = ..., queue_ms: _Optional[float] = ..., transfer_ms: _Optional[float] = ..., forward_ms: _Optional[float] = ..., reply_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., batch_fill: _Optional[int] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("format", "width", "height", "orientation", "conversions", "decoder")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ORIENTATION_FIELD_NUMBER: _ClassVar[int]
    CONVERSIONS_FIELD_NUMBER: _ClassVar[int]
    DECODER_FIELD_NUMBER: _ClassVar[int]
    format: str
    width: int
    height: int
    orientation: int
    conversions: _containers.RepeatedScalarFieldContainer[str]
    decoder: str
    def __init__(self, format: _Optional[str] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., orientation: _Optional[int] = ..., conversions: _Optional[_Iterable[str]] = ..., decoder: _Optional[str] = ...) -> None: ...

class ClassifyBatchRequest(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[ClassifyRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[ClassifyRequest, _Mapping]]] = ...) -> None: ...

class ClassifyBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ClassifyResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ClassifyResult, _Mapping]]] = ...) -> None: ...

class ClassifyResult(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: ClassifyResponse
    error: _status_pb2.Status
    def __init__(self, response: _Optional[_Union[ClassifyResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class ClassifyStreamRequest(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: int
    request: ClassifyRequest
    def __init__(self, id: _Optional[int] = ..., request: _Optional[_Union[ClassifyRequest, _Mapping]] = ...) -> None: ...

class ClassifyStreamResponse(_message.Message):
    __slots__ = ("id", "result")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    id: int
    result: ClassifyResult
    def __init__(self, id: _Optional[int] = ..., result: _Optional[_Union[ClassifyResult, _Mapping]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "labels", "limits", "preprocessing", "device", "batch_size", "activation", "execution", "versions", "dtype")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    preprocessing: Preprocessing
    device: str
    batch_size: int
    activation: str
    execution: str
    versions: _containers.ScalarMap[str, str]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., preprocessing: _Optional[_Union[Preprocessing, _Mapping]] = ..., device: _Optional[str] = ..., batch_size: _Optional[int] = ..., activation: _Optional[str] = ..., execution: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_image_bytes", "max_image_pixels", "max_image_frames", "max_batch_images", "stream_window")
    MAX_IMAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGE_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_IMAGES_FIELD_NUMBER: _ClassVar[int]
    STREAM_WINDOW_FIELD_NUMBER: _ClassVar[int]
    max_image_bytes: int
    max_image_pixels: int
    max_image_frames: int
    max_batch_images: int
    stream_window: int
    def __init__(self, max_image_bytes: _Optional[int] = ..., max_image_pixels: _Optional[int] = ..., max_image_frames: _Optional[int] = ..., max_batch_images: _Optional[int] = ..., stream_window: _Optional[int] = ...) -> None: ...

class Preprocessing(_message.Message):
    __slots__ = ("resize_shorter", "resize_height", "resize_width", "crop_height", "crop_width", "interpolation", "mean", "std")
    RESIZE_SHORTER_FIELD_NUMBER: _ClassVar[int]
    RESIZE_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    RESIZE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    CROP_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CROP_WIDTH_FIELD_NUMBER: _ClassVar[int]
    INTERPOLATION_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    STD_FIELD_NUMBER: _ClassVar[int]
    resize_shorter: int
    resize_height: int
    resize_width: int
    crop_height: int
    crop_width: int
    interpolation: str
    mean: _containers.RepeatedScalarFieldContainer[float]
    std: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, resize_shorter: _Optional[int] = ..., resize_height: _Optional[int] = ..., resize_width: _Optional[int] = ..., crop_height: _Optional[int] = ..., crop_width: _Optional[int] = ..., interpolation: _Optional[str] = ..., mean: _Optional[_Iterable[float]] = ..., std: _Optional[_Iterable[float]] = ...) -> None: ...
