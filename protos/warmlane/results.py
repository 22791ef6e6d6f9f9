"""What a call returns: frozen dataclasses with the field names of the contract, and how its messages become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from warmlane.errors import WarmlaneError, from_status
from warmlane.v1 import classifier_pb2 as pb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One class: its `index` in the model's output, from 0, its `label`, and its `score`, 0 to 1."""

    index: int
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of an image went on the server, in wall-clock milliseconds; the stages sum to `total_ms`.

    Attributes:
        admission_ms: until a decode thread took the image.
        decode_ms: sniffing, header check, decoding, cropping.
        queue_ms: until the image's batch was formed.
        transfer_ms: gathering the batch and copying it to the device.
        forward_ms: resize, normalize, forward and top-k of the whole batch.
        reply_ms: until the answer was handed to gRPC.
        total_ms: all of it.
        batch_fill: how many images shared the batch (a count, not a time).
    """

    admission_ms: float
    decode_ms: float
    queue_ms: float
    transfer_ms: float
    forward_ms: float
    reply_ms: float
    total_ms: float
    batch_fill: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """What decoding did to the file.

    Attributes:
        format: told by the first bytes, for example "JPEG".
        width: pixels as stored, before any rotation.
        height: pixels as stored, before any rotation.
        orientation: the EXIF orientation found, 1 to 8; 1 where there is none.
        conversions: what was done, one sentence each, in order.
        decoder: the library that decoded it, for example "libjpeg-turbo".
    """

    format: str
    width: int
    height: int
    orientation: int
    conversions: tuple[str, ...]
    decoder: str


@dataclass(frozen=True, slots=True)
class Classification:
    """The answer to one image.

    Attributes:
        predictions: sorted by falling score.
        timings: where the time went on the server.
        explanation: only if asked for with `explain=True`.
        model: name of the model that answered.
        model_version: digest of its weights, for example "sha256:0123456789ab".
        request_id: the id in the server's log; in a batch or stream "<call id>/<number>".
    """

    predictions: tuple[Prediction, ...]
    timings: Timings
    explanation: Explanation | None
    model: str
    model_version: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server takes: bytes, pixels and frames of an image, images of a batch, images in work of a stream."""

    max_image_bytes: int
    max_image_pixels: int
    max_image_frames: int
    max_batch_images: int
    stream_window: int


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What is done to an image before the forward.

    Attributes:
        resize_shorter: pixels that the shorter side becomes; 0 where the resize has both sides.
        resize_height: pixels; 0 where `resize_shorter` is used.
        resize_width: pixels; 0 where `resize_shorter` is used.
        crop_height: pixels cut from the centre.
        crop_width: pixels cut from the centre.
        interpolation: "bilinear" or "bicubic", antialiased.
        mean: per channel, RGB, on values from 0 to 1.
        std: per channel, RGB, on values from 0 to 1.
    """

    resize_shorter: int
    resize_height: int
    resize_width: int
    crop_height: int
    crop_width: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served.

    Attributes:
        name: to be used as `model`.
        version: digest of the weights.
        labels: class names, by `Prediction.index`.
        limits: the largest image, batch and so on.
        preprocessing: how an image becomes the model's input.
        device: "cpu", or a GPU's name.
        batch_size: images that one forward takes at most.
        activation: "softmax" or "sigmoid".
        execution: "compiled", or "eager" and why.
        versions: library versions of the server.
        dtype: what the forward computes in, for example "float16".
    """

    name: str
    version: str
    labels: tuple[str, ...]
    limits: Limits
    preprocessing: Preprocessing
    device: str
    batch_size: int
    activation: str
    execution: str
    versions: Mapping[str, str]
    dtype: str


def to_classification(message: pb.ClassifyResponse) -> Classification:
    """The answer in a ClassifyResponse."""
    return Classification(
        predictions=tuple(_flat(Prediction, prediction) for prediction in message.predictions),
        timings=_flat(Timings, message.timings),
        explanation=_flat(Explanation, message.explanation) if message.HasField("explanation") else None,
        model=message.model,
        model_version=message.model_version,
        request_id=message.request_id,
    )


def to_outcome(message: pb.ClassifyResult, request_id: str) -> Classification | WarmlaneError:
    """One image's answer or error in a batch or stream; `request_id` is the call's, for an error that names none."""
    if message.HasField("response"):
        return to_classification(message.response)
    return from_status(message.error, request_id)


def to_model_info(message: pb.Model) -> ModelInfo:
    """What a Model message says."""
    return ModelInfo(
        name=message.name,
        version=message.version,
        labels=tuple(message.labels),
        limits=_flat(Limits, message.limits),
        preprocessing=_flat(Preprocessing, message.preprocessing),
        device=message.device,
        batch_size=message.batch_size,
        activation=message.activation,
        execution=message.execution,
        versions=dict(message.versions),
        dtype=message.dtype,
    )


def _flat(kind: Callable[..., T], message: Message) -> T:
    """A `kind` from a message with the same fields, none of them a message."""
    return kind(**{field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields})


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else tuple(value)
