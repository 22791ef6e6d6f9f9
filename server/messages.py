"""From the pipeline's dataclasses to the contract's messages."""

import math
import time

from pipeline.errors import PipelineError
from pipeline.info import ModelInfo
from pipeline.preprocess import Preprocess
from pipeline.request import Decoding, Request, Result, Stamps
from server.settings import Settings
from warmlane.v1 import classifier_pb2 as pb

_NS_PER_MS = 1e6


def fill(
    response: pb.ClassifyResponse,
    request: Request,
    result: Result,
    top_k: int,
    *,
    explain: bool,
    labels: tuple[str, ...],
) -> None:
    """Write what became of one image into an empty answer, wherever that lies: what is put together first and then put
    into a larger message is copied. The model's name and version and the request's id are the caller's to add.

    Raises:
        PipelineError: the model's scores are not numbers.
    """
    # The first, if any: `torch.topk` takes what is not a number for the largest.
    if math.isnan(result.scores[0]):
        raise PipelineError("the model's scores are not numbers: do its weights, or this image, overflow its dtype?")
    add = response.predictions.add
    for index, score in zip(result.indices[:top_k].tolist(), result.scores[:top_k].tolist(), strict=True):
        add(index=index, label=labels[index], score=score)
    fill_timings(response.timings, request.stamps, result.batch_fill)
    if explain and request.decoding is not None:
        response.explanation.CopyFrom(explanation(request.decoding))


def fill_timings(message: pb.Timings, stamps: Stamps, batch_fill: int) -> None:
    """Write the stages of one image, up to now."""
    now = time.monotonic_ns()
    message.admission_ms = (stamps.decode_start - stamps.received) / _NS_PER_MS
    decoded = max(stamps.queued, stamps.decoded)
    message.decode_ms = (decoded - stamps.decode_start) / _NS_PER_MS
    message.queue_ms = (stamps.batched - decoded) / _NS_PER_MS
    message.transfer_ms = (stamps.forward_start - stamps.batched) / _NS_PER_MS
    message.forward_ms = (stamps.forward_end - stamps.forward_start) / _NS_PER_MS
    message.reply_ms = (now - stamps.forward_end) / _NS_PER_MS
    message.total_ms = (now - stamps.received) / _NS_PER_MS
    message.batch_fill = batch_fill


def explanation(decoding: Decoding) -> pb.Explanation:
    """What decoding did to a file."""
    header = decoding.header
    return pb.Explanation(
        format=header.format,
        width=header.width,
        height=header.height,
        orientation=header.orientation,
        conversions=decoding.conversions,
        decoder=decoding.decoder,
    )


def model(info: ModelInfo, settings: Settings) -> pb.Model:
    """What is served, and its limits."""
    return pb.Model(
        name=info.name,
        version=info.version,
        labels=info.labels,
        limits=limits(settings),
        preprocessing=preprocessing(info.preprocess),
        device=info.device,
        dtype=info.dtype,
        batch_size=info.batch_size,
        activation=info.activation,
        execution=": ".join(filter(None, (info.execution, info.cost))),
        versions=info.versions,
    )


def limits(settings: Settings) -> pb.Limits:
    """The settings that bound what a caller may send."""
    return pb.Limits(
        max_image_bytes=settings.max_image_bytes,
        max_image_pixels=settings.max_image_pixels,
        max_image_frames=settings.max_image_frames,
        max_batch_images=settings.max_batch_images,
        stream_window=settings.stream_window,
    )


def preprocessing(preprocess: Preprocess) -> pb.Preprocessing:
    """The model's transform in numbers."""
    message = pb.Preprocessing(
        crop_height=preprocess.crop[0],
        crop_width=preprocess.crop[1],
        interpolation=preprocess.interpolation,
        mean=preprocess.mean,
        std=preprocess.std,
    )
    if isinstance(preprocess.resize, int):
        message.resize_shorter = preprocess.resize
    else:
        message.resize_height, message.resize_width = preprocess.resize
    return message
