"""What runs in the process of `bench.load.reference.own_reference`."""

from collections.abc import Sequence

import torch

from bench.expected import Expected, expect, tolerance
from bench.mix import mix_images
from pipeline.canvas import upright
from pipeline.decode import decode
from pipeline.errors import PipelineError
from pipeline.headers import Limits, read_header
from pipeline.model import Model
from pipeline.postprocess import top_scores
from pipeline.reference import normalize, reference_levels
from server.build import pipeline_options, served_model
from server.settings import parse
from server.shares import image_limits


@torch.inference_mode()
def compute(server_args: Sequence[str], mix: str) -> list[Expected | None]:
    """What each file is to be answered with; None for one that the service refuses."""
    settings = parse(server_args)
    model, limits = served_model(settings), image_limits(settings)
    allowed = tolerance(pipeline_options(settings).dtype)
    return [_answer(file, model, limits, allowed) for file in mix_images(mix)]


def _answer(file: bytes, model: Model, limits: Limits, allowed: float) -> Expected | None:
    try:
        decoded = decode(file, read_header(file, limits))
    except PipelineError:
        return None
    pixels = upright(decoded.pixels, decoded.header.applied_orientation)
    levels = reference_levels(pixels, model.preprocess)
    scores, indices = top_scores(model.module(normalize(levels, model.preprocess)[None]), model.activation)
    return expect(zip(indices[0].tolist(), scores[0].tolist(), strict=True), allowed)
